//! The kernel, what it permits, and the processors. Rule: a function of the tree alone.

use super::check::{Finding, State};
use super::tree::{Miss, Tree, number, shown};

const RELEASE: &str = "proc/sys/kernel/osrelease";
const CPUS: &str = "proc/cpuinfo";
const IO_URING: &str = "proc/sys/kernel/io_uring_disabled";
const PTRACE: &str = "proc/sys/kernel/yama/ptrace_scope";
/// What an engine uses of newer kernels, or may use once it can, and the release that brought it.
const FEATURES: [(&str, Release); 4] =
    [("io_uring", (5, 1)), ("pidfd", (5, 3)), ("MADV_POPULATE_WRITE", (5, 14)), ("SO_PEERPIDFD", (6, 5))];
/// What `Batch::verify` needs to sum bytes where they lie, and frame headers to be summed by the processor.
const SUM_FLAGS: [&str; 4] = ["sse4_2", "pclmulqdq", "avx512f", "vpclmulqdq"];

/// A kernel's first two numbers.
type Release = (u64, u64);

pub(crate) fn checks(tree: &Tree) -> Vec<Finding> {
    let mut found = vec![kernel(tree)];
    found.extend(cpus(tree));
    found.extend([io_uring(tree), ptrace(tree)]);
    found
}

/// The numbers of `6.1.0-18-amd64`.
fn release(text: &str) -> Option<Release> {
    let mut parts = text.split(['.', '-', '+', ' ']);
    let mut next = || number(parts.next()?).ok();
    Some((next()?, next()?))
}

fn kernel(tree: &Tree) -> Finding {
    const NAME: &str = "kernel";
    const WHY: &str = "newer ones prefault faster and watch processes";
    let text = match tree.text(RELEASE) {
        Ok(text) => text,
        Err(miss) => return Finding::missed_always(NAME, RELEASE, &miss, WHY),
    };
    let Some(has) = release(&text) else {
        let miss = Miss::Unreadable(format!("`{}` is no release", shown(&text)));
        return Finding::missed_always(NAME, RELEASE, &miss, WHY);
    };
    let lacks = FEATURES.iter().filter(|(_, since)| has < *since);
    let lacks: Vec<String> = lacks.map(|(what, (a, b))| format!("{what} ({a}.{b})")).collect();
    let text = shown(&text);
    if lacks.is_empty() {
        return Finding::new(NAME, State::Ok, text, WHY);
    }
    // Before 5.3 nothing here was ever tried.
    let state = if has < (5, 3) { State::Warn } else { State::Note };
    Finding::new(NAME, state, format!("{text} lacks {}", lacks.join(", ")), WHY)
        .remedy("boot a newer kernel where that matters; the engine works without them, by slower ways")
}

fn cpus(tree: &Tree) -> Vec<Finding> {
    const NAME: &str = "cpus";
    const WHY: &str = "engine and application share them";
    let text = match tree.text(CPUS) {
        Ok(text) => text,
        Err(miss) => return vec![Finding::missed_always(NAME, CPUS, &miss, WHY)],
    };
    let field = |line: &str| line.split_once(':').map(|(k, v)| (k.trim().to_string(), v.trim().to_string()));
    let fields: Vec<(String, String)> = text.lines().filter_map(field).collect();
    let value = |key: &str| fields.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str());
    let count = fields.iter().filter(|(k, v)| k == "processor" && number(v).is_ok()).count();
    if count == 0 {
        let miss = Miss::Unreadable("no line of it names a processor".to_string());
        return vec![Finding::missed_always(NAME, CPUS, &miss, WHY)];
    }
    let model = value("model name").map_or_else(String::new, |m| format!(", {}", shown(m)));
    let (state, s) = if count == 1 { (State::Note, "") } else { (State::Ok, "s") };
    let cpus = Finding::new(NAME, state, format!("{count} CPU{s}{model}"), WHY);
    let flags = value("flags").map(|flags| flags.split_whitespace().collect::<Vec<_>>());
    vec![cpus, sums(flags.as_deref())]
}

fn sums(flags: Option<&[&str]>) -> Finding {
    const NAME: &str = "cpu-sums";
    const WHY: &str = "for fast checksums";
    let Some(flags) = flags else {
        let found = "no x86 flags: bytes to verify are copied first";
        return Finding::new(NAME, State::Note, found, WHY);
    };
    let lacks: Vec<&str> = SUM_FLAGS.into_iter().filter(|flag| !flags.contains(flag)).collect();
    if lacks.is_empty() {
        return Finding::new(NAME, State::Ok, format!("has {}", SUM_FLAGS.join(", ")), WHY);
    }
    let found = format!("lacks {}: bytes to verify are copied first", lacks.join(", "));
    if lacks.contains(&"sse4_2") {
        return Finding::new(NAME, State::Warn, found, WHY)
            .remedy("have the virtual machine pass the host's CPU model on; sums are made in software");
    }
    Finding::new(NAME, State::Note, found, WHY)
        .remedy("run where the processor has them, or have the virtual machine pass them on")
}

fn io_uring(tree: &Tree) -> Finding {
    const NAME: &str = "io-uring";
    const WHY: &str = "not used by this version";
    let since = FEATURES[0].1;
    match tree.number(IO_URING) {
        Ok(0) => Finding::new(NAME, State::Ok, "permitted", WHY),
        Ok(1) => Finding::new(NAME, State::Note, "only for members of kernel.io_uring_group and root", WHY)
            .remedy("sysctl kernel.io_uring_disabled=0; nothing here needs it yet"),
        Ok(2) => Finding::new(NAME, State::Note, "disabled for everybody", WHY)
            .remedy("sysctl kernel.io_uring_disabled=0; nothing here needs it yet"),
        Ok(other) => {
            let miss = Miss::Unreadable(format!("{other} is no setting that is known"));
            Finding::missed(NAME, IO_URING, &miss, WHY)
        }
        Err(Miss::Absent) => match tree.text(RELEASE).ok().and_then(|text| release(&text)) {
            Some(has) if has < since => {
                Finding::new(NAME, State::Absent, "the kernel is older than 5.1", WHY)
            }
            Some(_) => Finding::new(NAME, State::Ok, "the kernel has no switch against it", WHY),
            None => Finding::missed(NAME, IO_URING, &Miss::Absent, WHY),
        },
        Err(miss) => Finding::missed(NAME, IO_URING, &miss, WHY),
    }
}

fn ptrace(tree: &Tree) -> Finding {
    const NAME: &str = "ptrace";
    const WHY: &str = "for same-host copies";
    let (found, remedy) = match tree.number(PTRACE) {
        Ok(0) => {
            return Finding::new(NAME, State::Ok, "0: a user's processes may copy from each other", WHY);
        }
        Err(Miss::Absent) => {
            let found = "no Yama: a user's processes may copy from each other";
            return Finding::new(NAME, State::Ok, found, WHY);
        }
        Ok(1) => (
            "1: memory may be copied only from descendants",
            "sysctl kernel.yama.ptrace_scope=0, or CAP_SYS_PTRACE",
        ),
        Ok(2) => ("2: memory may be copied only with CAP_SYS_PTRACE", "give the process CAP_SYS_PTRACE"),
        Ok(3) => (
            "3: no process may copy another's memory",
            "boot with another setting of kernel.yama.ptrace_scope; 3 can't be taken back",
        ),
        Ok(other) => {
            let miss = Miss::Unreadable(format!("{other} is no setting that is known"));
            return Finding::missed(NAME, PTRACE, &miss, WHY);
        }
        Err(miss) => return Finding::missed(NAME, PTRACE, &miss, WHY),
    };
    let unaffected = "memory that the engine owns (a memfd) is unaffected, and so is TCP";
    Finding::new(NAME, State::Warn, found, WHY).remedy(format!("{remedy}; {unaffected}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::testing::tree;

    #[test]
    fn releases_are_read_as_distributions_write_them() {
        for (text, numbers) in [
            ("6.1.0-18-amd64", Some((6, 1))),
            ("5.15.153.1-microsoft-standard-WSL2", Some((5, 15))),
            ("6.12-rc3", Some((6, 12))),
            ("4.18.0+", Some((4, 18))),
            ("6", None),
            ("six.one", None),
            ("", None),
            ("99999999999999999999.1", None),
        ] {
            assert_eq!(release(text), numbers, "{text}");
        }
    }

    #[test]
    fn an_old_kernel_is_told_what_it_lacks() {
        for (text, state, lacks) in [
            ("6.5.0", State::Ok, None),
            ("6.4.9", State::Note, Some("SO_PEERPIDFD (6.5)")),
            ("5.4.0", State::Note, Some("MADV_POPULATE_WRITE (5.14)")),
            ("4.19.0", State::Warn, Some("io_uring (5.1), pidfd (5.3)")),
        ] {
            let (_folder, tree) = tree(&[(RELEASE, text)]);
            let finding = kernel(&tree);
            assert_eq!(finding.state, state, "{text}");
            assert!(lacks.is_none_or(|l| finding.found.contains(l)), "{finding:?}");
        }
    }

    #[test]
    fn processors_of_other_kinds() {
        let (_folder, arm) = tree(&[(CPUS, "processor\t: 0\nFeatures\t: fp crc32\n\nprocessor\t: 1\n")]);
        let [cpus, sums] = cpus(&arm).try_into().unwrap();
        assert_eq!((cpus.state, cpus.found.as_str()), (State::Ok, "2 CPUs"));
        assert_eq!(sums.state, State::Note);
        assert_eq!(super::sums(Some(&["sse4_2", "pclmulqdq"])).state, State::Note);
        assert_eq!(super::sums(Some(&["pclmulqdq"])).state, State::Warn);
        assert_eq!(super::sums(Some(&SUM_FLAGS)).state, State::Ok);
    }

    #[test]
    fn settings_of_yama_and_io_uring() {
        let rows = [
            ("0", State::Ok),
            ("1", State::Warn),
            ("2", State::Warn),
            ("3", State::Warn),
            ("9", State::Warn),
        ];
        for (value, state) in rows {
            let (_folder, tree) = tree(&[(PTRACE, value)]);
            assert_eq!(ptrace(&tree).state, state, "{value}");
        }
        for (files, state) in [
            (&[(IO_URING, "0")][..], State::Ok),
            (&[(IO_URING, "1")], State::Note),
            (&[(IO_URING, "2")], State::Note),
            (&[(IO_URING, "3")], State::Warn),
            (&[(RELEASE, "5.0.1")], State::Absent),
            (&[(RELEASE, "6.1.0")], State::Ok),
            (&[], State::Absent),
        ] {
            let (_folder, tree) = tree(files);
            assert_eq!(io_uring(&tree).state, state, "{files:?}");
        }
        let (_folder, none) = tree(&[]);
        assert_eq!(ptrace(&none).state, State::Ok);
    }
}
