//! Workers keep to the CPUs that the settings name: read back from their threads; and settings that can't work are refused with a reason.

#![allow(clippy::unwrap_used)] // Helpers of tests are tests.

mod support;

use orbit_te::{Access, Config, CpuList, Engine, Error, HostBuffer};
use std::time::Duration;
use support::watchdog;

/// The CPUs of this process's workers' threads, by the kernel's word, in the order of the workers.
fn workers_cpus() -> Vec<String> {
    let mut found = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        // A thread of another test may end meanwhile.
        let read = |name: &str| std::fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let name = read("comm");
        if let Some(number) = name.trim().strip_prefix("orbit-te-work-") {
            found.push((number.parse::<u32>().unwrap(), allowed(&read("status"))));
        }
    }
    found.sort();
    found.into_iter().map(|(_, cpus)| cpus).collect()
}

fn allowed(status: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    line.unwrap_or_default().trim().to_string()
}

fn list(text: &str) -> CpuList {
    text.parse().unwrap()
}

fn start(workers: usize, lists: &[&str]) -> Result<Engine, Error> {
    let worker_cpus = lists.iter().map(|text| list(text)).collect();
    Engine::builder().config(Config { workers, worker_cpus, ..Config::default() }).start()
}

/// One test of all rows: the workers of engines that live at the same time could not be told apart.
#[test]
fn workers_keep_to_their_cpus() {
    let _watchdog = watchdog("workers_keep_to_their_cpus", Duration::from_secs(60));
    let mine = allowed(&std::fs::read_to_string("/proc/thread-self/status").unwrap());
    let all: Vec<String> = list(&mine).cpus().map(|cpu| cpu.to_string()).collect();
    let (first, last) = (all[0].as_str(), all[all.len() - 1].as_str());
    let check = |workers: usize, lists: &[&str], want: &[&str]| {
        let engine = start(workers, lists).unwrap();
        assert_eq!(workers_cpus(), want, "{workers} workers on {lists:?}");
        let places = engine.worker_places();
        let told: Vec<_> = places.iter().map(|place| place.cpus.as_ref().map(CpuList::to_string)).collect();
        let wanted: Vec<_> = want.iter().map(|cpus| (!lists.is_empty()).then(|| cpus.to_string())).collect();
        assert_eq!(told, wanted);
        // The caller, who drives, is where it was.
        move_bytes(&engine);
        assert_eq!(allowed(&std::fs::read_to_string("/proc/thread-self/status").unwrap()), mine);
        engine.shutdown();
        assert!(workers_cpus().is_empty());
    };
    check(1, &[], &[&mine]);
    check(1, &[last], &[last]);
    check(2, &[last], &[last, last]);
    check(2, &[first, last], &[first, last]);
    check(1, &[&mine], &[&mine]);

    let refused = |workers: usize, lists: &[&str], want: &str| {
        let said = start(workers, lists).map(|_| ()).unwrap_err();
        assert!(matches!(&said, Error::Config(why) if why.contains(want)), "{workers} on {lists:?}: {said}");
        assert!(workers_cpus().is_empty(), "a worker is left");
    };
    refused(3, &[first, last], "2 lists of CPUs for 3 worker(s)");
    refused(1, &[first, last], "2 lists of CPUs for 1 worker(s)");
    refused(1, &["1023"], "can't run on CPUs 1023: there is no CPU 1023; there ");
    // The first worker has started by then, and ends.
    refused(2, &[first, "1020,1023"], "no CPU 1020,1023");
}

fn move_bytes(engine: &Engine) {
    let region = |access| engine.register(HostBuffer::new(4096).unwrap().into_backing(), access).unwrap();
    let (ours, theirs) = (region(Access::LOCAL), region(Access::SHARED));
    engine.expose("pool", &theirs).unwrap();
    let segment = engine.open(&format!("{}/pool", engine.address().unwrap()));
    let segment = segment.wait(Duration::from_secs(10)).unwrap();
    ours.write_at(0, &[9; 4096]).unwrap();
    segment.write(0, &ours.whole()).unwrap().wait().unwrap();
    let mut found = [0; 4096];
    theirs.read_at(0, &mut found).unwrap();
    assert_eq!(found, [9; 4096]);
}
