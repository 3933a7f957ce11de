//! What can't work: each is told in one line with its cause, before a byte moves where that is possible, and harms nothing.

use crate::common::{Ended, file, folder, names, noise, run, serve, skipped, sparse, start, text};
use nix::sys::signal::Signal;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

#[test]
fn words_that_make_no_sense_are_usage_errors() {
    let folder = folder();
    let source = file(folder.path(), "source", 10);
    let source = text(&source);
    let rows: [(&[&str], &str); 18] = [
        (&["put", source, "127.0.0.1/seg"], "port"),
        (&["put", source, "127.0.0.1:99999/seg"], "port"),
        (&["put", source, "127.0.0.1:1"], "no `/`"),
        (&["put", source, "127.0.0.1:1/"], "name is empty"),
        (&["put", source, "127.0.0.1:1/seg@x"], "`x` is no size"),
        (&["put", source, "127.0.0.1:1/seg@1", "--offset", "1"], "twice"),
        (&["put", source], "SEGMENT"),
        (&["get", "127.0.0.1:1/seg", source, "--bytes", "0"], "zero"),
        (&["demo", "--bytes", "1GB"], "`1GB` is no size"),
        (&["serve", "--listen", "127.0.0.1:0", "--name", "a"], "--bytes"),
        (&["serve", "--listen", "nowhere", "--name", "a", "--bytes", "1"], "HOST:PORT"),
        (&["serve", "--listen", "127.0.0.1:0", "--name", "a@b", "--bytes", "1"], "`a@b` can't be a name"),
        (&["serve", "--listen", "0.0.0.0:0", "--name", "a", "--bytes", "1"], "--trust-network"),
        (&["demo", "--worker-cpus", "3-1"], "the range 3-1"),
        (&["demo", "--worker-cpus", "a"], "`a` is no list of CPUs"),
        (&["demo", "--worker-cpus", "0,1023"], "there is no CPU 1023"),
        (&["demo", "--rdma-completions", "sometimes"], "polling, events, adaptive"),
        (&["demo", "--rdma-completions", "events", "--no-rdma"], "--no-rdma"),
    ];
    for (words, told) in rows {
        run(words).says(2, &[told]);
    }
    run(&["put", source, "otseg1:AAAA"]).says(2, &["token"]);
}

#[test]
fn peers_that_are_not_there_or_not_ours_are_told_apart() {
    let folder = folder();
    let source = file(folder.path(), "source", 10);
    let served = serve(&["--bytes", "1MiB"]);
    run(&["put", text(&source), &format!("{}/other", served.address)]).says(3, &["refused", "other"]);
    // A port that was just free.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    run(&["put", text(&source), &format!("127.0.0.1:{port}/seg")]).says(3, &["no connection", "refused"]);
    // Somebody who speaks something else.
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = other.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in other.incoming().flatten() {
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    run(&["put", text(&source), &format!("{at}/seg")]).says(3, &[]);
    // A token whose owner is gone.
    let token = served.token.clone();
    drop(served);
    run(&["put", text(&source), &token]).says(3, &["no connection"]);
}

#[test]
fn what_does_not_fit_is_refused_before_a_byte_moves() {
    let folder = folder();
    let target = file(folder.path(), "target", 10_000);
    let source = file(folder.path(), "source", 10_001);
    let served = serve(&["--file", text(&target)]);
    let (at, back) = (&served.segment, folder.path().join("back"));
    run(&["put", text(&source), at]).says(2, &["10001 bytes", "room for 10000"]);
    run(&["put", text(&source), &format!("{at}@10000")]).says(2, &["offset 10000 is past the end"]);
    run(&["put", text(&source), &format!("{at}@18446744073709551615")]).says(2, &["past the end"]);
    run(&["get", at, text(&back), "--bytes", "10001"]).says(2, &["10000 bytes from offset 0"]);
    run(&["get", &format!("{at}@9999"), text(&back), "--bytes", "2"]).says(2, &["1 bytes from offset 9999"]);
    run(&["get", &format!("{at}@10KiB"), text(&back)]).says(2, &["past the end"]);
    drop(served);
    assert!(std::fs::read(&target).unwrap() == noise(10_000));
    assert_eq!(names(folder.path()), ["source", "target"]);
}

#[test]
fn trouble_with_files_of_this_host() {
    let folder = folder();
    let (empty, source) = (sparse(folder.path(), "empty", 0), file(folder.path(), "source", 10));
    let none = folder.path().join("none");
    let served = serve(&["--bytes", "1MiB"]);
    run(&["put", text(&none), &served.segment]).says(4, &["none", "No such file"]);
    run(&["put", text(&empty), &served.segment]).says(4, &["empty"]);
    run(&["put", text(folder.path()), &served.segment]).says(4, &["no regular file"]);
    run(&["get", &served.segment, text(folder.path())]).says(4, &["no regular file"]);
    run(&["get", &served.segment, "/dev/null"]).says(4, &["no regular file"]);
    run(&["get", &served.segment, text(&none.join("deeper"))]).says(4, &["No such file"]);
    let listen = ["serve", "--listen", "127.0.0.1:0", "--name", "a", "--file"];
    run(&[&listen[..], &[text(&none)]].concat()).says(4, &["none", "No such file"]);
    run(&[&listen[..], &[text(&empty)]].concat()).says(4, &["empty"]);
    run(&[&listen[..], &[text(folder.path())]].concat()).says(4, &["directory"]);
    run(&["serve", "--listen", &served.address, "--name", "a", "--bytes", "1"])
        .says(4, &["can't listen at", "in use"]);

    // One writer, or any number of readers.
    let writer = serve(&["--file", text(&source)]);
    run(&[&listen[..], &[text(&source)]].concat()).says(4, &["locked"]);
    run(&[&listen[..], &[text(&source), "--read-only"]].concat()).says(4, &["locked"]);
    drop(writer);
    let _readers = [(); 2].map(|()| serve(&["--file", text(&source), "--read-only"]));
    run(&[&listen[..], &[text(&source)]].concat()).says(4, &["locked"]);
}

#[test]
fn a_read_only_file_is_not_written() {
    let folder = folder();
    let target = file(folder.path(), "target", 70_000);
    let source = file(folder.path(), "source", 512);
    let served = serve(&["--file", text(&target), "--read-only"]);
    run(&["put", text(&source), &served.segment]).says(3, &["may not be written"]);
    let back = folder.path().join("back");
    run(&["get", &served.segment, text(&back)]).ok();
    drop(served);
    assert!(std::fs::read(&target).unwrap() == noise(70_000));
    assert!(std::fs::read(&back).unwrap() == noise(70_000));
}

#[test]
fn a_served_file_that_is_cut_short_fails_the_put_and_not_the_server() {
    let folder = folder();
    let target = sparse(folder.path(), "target", 4 << 20);
    let source = file(folder.path(), "source", 4 << 20);
    let served = serve(&["--file", text(&target)]);
    std::fs::OpenOptions::new().write(true).open(&target).and_then(|f| f.set_len(1 << 20)).unwrap();
    run(&["put", text(&source), &served.segment]).says(1, &["cut short"]);
    // A read of what is gone is told so too, and does not wait for its deadline.
    let back = folder.path().join("back");
    run(&["get", &served.segment, text(&back)]).says(1, &["cut short"]);
    assert!(!back.exists(), "a failed get leaves no file");
    let small = file(folder.path(), "small", 1 << 20);
    run(&["put", text(&small), &served.segment]).ok();
    served.process.signal(Signal::SIGTERM);
    assert_eq!(served.process.end(Duration::from_secs(20)).code, Some(0));
    assert!(std::fs::read(&target).unwrap() == noise(1 << 20));
}

/// A transfer of so much that it is certainly under way a moment after it has begun, with the serving side killed in its middle.
fn kill_the_peer(words: impl Fn(&str) -> Vec<String>) -> Ended {
    let served = serve(&["--bytes", "64GiB"]);
    let running = start(&words(&served.segment));
    served.process.hear("peer connected");
    std::thread::sleep(Duration::from_millis(300));
    served.process.signal(Signal::SIGKILL);
    let since = Instant::now();
    let ended = running.end(Duration::from_secs(30));
    assert!(since.elapsed() < Duration::from_secs(10), "took {:?}", since.elapsed());
    ended
}

#[test]
fn a_peer_killed_in_the_middle_fails_put_and_get_soon() {
    let folder = folder();
    let source = sparse(folder.path(), "source", 64 << 30);
    let ended = kill_the_peer(|at| ["put", text(&source), at].map(String::from).to_vec());
    ended.says(1, &["bytes ", "of 68719476736"]);
    std::fs::remove_file(&source).unwrap();

    let back = file(folder.path(), "back", 10);
    let ended = kill_the_peer(|at| ["get", at, text(&back), "--bytes", "8GiB"].map(String::from).to_vec());
    ended.says(1, &["bytes ", "of 8589934592"]);
    assert_eq!(names(folder.path()), ["back"]);
    assert!(std::fs::read(&back).unwrap() == noise(10));
}

#[test]
fn strangers_at_the_port_do_not_disturb_a_put() {
    let folder = folder();
    let size = 96 << 20;
    let source = file(folder.path(), "source", size);
    let target = sparse(folder.path(), "target", size as u64);
    let served = serve(&["--file", text(&target)]);
    let put = start(&["put", text(&source), &served.segment]);
    let mut silent = Vec::new();
    for _ in 0..20 {
        let mut stream = TcpStream::connect(&served.address).unwrap();
        stream.write_all(b"GET /seg HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        // Refused: closed, or answered with words and closed.
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(answer.len() < 4096);
        silent.push(TcpStream::connect(&served.address).unwrap());
    }
    let out = put.end(Duration::from_secs(60)).ok();
    assert!(out.starts_with(&format!("put {size} bytes")), "{out}");
    served.process.signal(Signal::SIGTERM);
    assert_eq!(served.process.end(Duration::from_secs(20)).code, Some(0));
    assert!(std::fs::read(&target).unwrap() == std::fs::read(&source).unwrap());
}

/// A small file system; gone with this value.
struct Mounted<'a>(&'a Path);

impl Mounted<'_> {
    fn mount(at: &Path) -> Option<Mounted<'_>> {
        let done = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m", "none"]).arg(at).output();
        done.is_ok_and(|o| o.status.success()).then_some(Mounted(at))
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

#[test]
fn a_full_disk_is_told_and_nothing_is_left() {
    let folder = folder();
    let small = folder.path().join("small");
    std::fs::create_dir(&small).unwrap();
    let Some(_mounted) = Mounted::mount(&small) else {
        return skipped("a full disk under get and serve: needs the right to mount a tmpfs");
    };
    let served = serve(&["--bytes", "4MiB"]);
    let back = small.join("back");
    run(&["get", &served.segment, text(&back)]).says(4, &["writing `", "No space left"]);
    assert_eq!(names(&small), Vec::<String>::new());
    let sparse = sparse(&small, "sparse", 4 << 20);
    run(&["serve", "--listen", "127.0.0.1:0", "--name", "a", "--file", text(&sparse)])
        .says(4, &["disk blocks", "No space left"]);
}

#[test]
fn rdma_that_is_demanded_and_cannot_be_had() {
    // Whatever this host has: without a library or a device the first says that, and with one that there is none of this name.
    let demanded = ["bench", "--seconds", "1", "--rdma-device"];
    let with = |device: &'static str| run(&[&demanded[..], &[device]].concat());
    with("no-such-device").says(2, &["rdma: unavailable, because "]);
    with("no-such-device:1").says(2, &["rdma: unavailable, because "]);
    let told = run(&["bench", "--seconds", "1", "--rdma-gid-index", "65535"]);
    told.says(2, &["rdma: unavailable, because "]);
    let served =
        run(&["serve", "--listen", "127.0.0.1:0", "--name", "a", "--bytes", "1", "--rdma-device", "no-such"]);
    served.says(2, &["orbit-te: rdma: unavailable, because "]);
    run(&["bench", "--rdma-gid-index", "70000"]).says(2, &["--rdma-gid-index"]);
    run(&["bench", "--no-rdma", "--rdma-device", "mlx5_0"]).says(2, &["--no-rdma"]);
    run(&["bench", "--no-rdma", "--rdma-gid-index", "3"]).says(2, &["--no-rdma"]);
}
