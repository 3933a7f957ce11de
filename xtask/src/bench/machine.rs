//! What a measurement names beside its numbers: the machine, the revision, the day.

use std::fmt;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

pub(super) struct Machine {
    cpu: String,
    cores: usize,
    kernel: String,
    congestion_control: String,
    revision: String,
    date: String,
    reps: usize,
    seconds: f64,
}

impl Machine {
    /// This machine, now; a run of `reps` repetitions of `seconds` each.
    pub(super) fn here(reps: usize, seconds: f64) -> Machine {
        let file =
            |path| std::fs::read_to_string(path).map_or("unknown".into(), |t: String| t.trim().to_owned());
        let cpuinfo = file("/proc/cpuinfo");
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Machine {
            cpu: model.map_or("unknown CPU", |(_, name)| name).into(),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            kernel: file("/proc/sys/kernel/osrelease"),
            congestion_control: file("/proc/sys/net/ipv4/tcp_congestion_control"),
            revision: revision().unwrap_or_else(|| "unknown".into()),
            date: date(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs() / 86_400)),
            reps,
            seconds,
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { cpu, cores, kernel, congestion_control, revision, date, reps, seconds } = self;
        write!(
            f,
            "{cpu}, {cores} cores, Linux {kernel}, TCP {congestion_control}; revision {revision}, {date}; "
        )?;
        write!(f, "{reps} interleaved rounds of {seconds} s a case; medians")
    }
}

fn revision() -> Option<String> {
    let git = |args: &[&str]| {
        let out = Command::new("git").args(args).output().ok().filter(|out| out.status.success())?;
        Some(String::from_utf8_lossy(&out.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed = !git(&["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    Some(if changed { format!("{commit} with changes") } else { commit })
}

/// The day, UTC, `days` after 1970-01-01, in the Gregorian calendar.
fn date(days: u64) -> String {
    // Years begin in March here, so that the leap day is a year's last; a day of such a year then tells its month.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    format!("{:04}-{month:02}-{day:02}", era * 400 + year + carry)
}

#[cfg(test)]
mod tests {
    #[test]
    fn days_have_dates() {
        let rows = [(0, "1970-01-01"), (59, "1970-03-01"), (11_016, "2000-02-29"), (20_788, "2026-12-01")];
        for (days, text) in rows {
            assert_eq!(super::date(days), text);
        }
    }
}
