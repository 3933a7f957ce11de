//! Files through a served segment: what comes back is what went in, at any size and offset, from memory and from a served file.

use crate::common::{file, folder, names, noise, run, serve, sparse, start, text};
use nix::sys::signal::Signal;
use std::time::Duration;

/// Sizes around what the layers below treat specially, and offsets of every alignment.
const ROWS: [(usize, u64); 7] =
    [(1, 0), (511, 1), (512, 4095), (513, 513), (65_535, 7), (65_537, 99_999), (1_048_577, 12_345)];

#[test]
fn odd_sizes_and_offsets_come_back_equal() {
    let (folder, served) = (folder(), serve(&["--bytes", "2MiB"]));
    for (size, offset) in ROWS {
        let source = file(folder.path(), "source", size);
        let back = folder.path().join("back");
        let put = run(&["put", text(&source), &format!("{}@{offset}", served.segment)]).ok();
        // By the token, and with the offset as an option.
        let (offset, size_word) = (offset.to_string(), size.to_string());
        let get = run(&["get", &served.token, text(&back), "--offset", &offset, "--bytes", &size_word]).ok();
        assert!(noise(size) == std::fs::read(&back).unwrap(), "{size} bytes at {offset} came back changed");
        let crc = |out: &str| out.split("crc32c ").nth(1).and_then(|s| s.get(..8)).map(str::to_string);
        assert_eq!(crc(&put), Some(format!("{:08x}", crc32c::crc32c(&noise(size)))), "{put}");
        assert_eq!(crc(&put), crc(&get), "{put}{get}");
    }
    assert_eq!(names(folder.path()), ["back", "source"]);
    served.process.hear("put 1048577 bytes at offset 12345");
    served.process.hear("got 1048577 bytes at offset 12345");
}

#[test]
fn a_served_file_holds_what_was_put_and_nothing_else() {
    let folder = folder();
    // Several blocks, the last one short.
    let (size, offset) = (64 * (1 << 20) + 12_345, 4_097);
    let source = file(folder.path(), "source", size);
    let target = sparse(folder.path(), "target", (size + 10_000) as u64);
    let served = serve(&["--file", text(&target)]);
    run(&["put", text(&source), &format!("{}@{offset}", served.segment)]).ok();
    let back = folder.path().join("back");
    let size_word = size.to_string();
    run(&["get", &format!("{}@{offset}", served.segment), text(&back), "--bytes", &size_word]).ok();
    served.process.signal(Signal::SIGTERM);
    let ended = served.process.end(Duration::from_secs(20));
    assert_eq!(ended.code, Some(0), "{ended:?}");

    let sent = noise(size);
    assert!(std::fs::read(&back).unwrap() == sent);
    let held = std::fs::read(&target).unwrap();
    assert_eq!(held.len(), size + 10_000);
    assert!(held[offset..offset + size] == sent[..]);
    assert!(held[..offset].iter().chain(&held[offset + size..]).all(|b| *b == 0));
}

#[test]
fn get_takes_the_rest_of_the_segment_by_default_and_keeps_permissions() {
    use std::os::unix::fs::PermissionsExt;
    let folder = folder();
    let source = file(folder.path(), "source", 100_000);
    let served = serve(&["--file", text(&source), "--read-only"]);
    let back = file(folder.path(), "back", 5);
    std::fs::set_permissions(&back, std::fs::Permissions::from_mode(0o640)).unwrap();
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&back, &link).unwrap();
    run(&["get", &format!("{}@97KiB", served.segment), text(&link)]).ok();
    assert_eq!(std::fs::read(&back).unwrap(), noise(100_000)[97 * 1024..]);
    assert_eq!(std::fs::metadata(&back).unwrap().permissions().mode() & 0o777, 0o640);
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
}

#[test]
fn signals_end_serve_cleanly() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let served = serve(&["--bytes", "1MiB"]);
        served.process.signal(signal);
        let ended = served.process.end(Duration::from_secs(10));
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
}

#[test]
fn serve_tells_the_same_in_json() {
    let process = start(&["serve", "--listen", "127.0.0.1:0", "--name", "a/b", "--bytes", "4KiB", "--json"]);
    let line =
        crate::common::until("the line", || process.out.lock().unwrap().lines().next().map(str::to_string));
    let value: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(
        (&value["name"], &value["bytes"], &value["access"]),
        (&"a/b".into(), &4096.into(), &"read-write".into())
    );
    let folder = folder();
    let source = file(folder.path(), "source", 4096);
    run(&["put", text(&source), &format!("{}/a/b", value["address"].as_str().unwrap())]).ok();
    run(&["put", text(&source), value["token"].as_str().unwrap()]).ok();
}

#[test]
fn a_get_that_is_stopped_leaves_nothing() {
    let (folder, served) = (folder(), serve(&["--bytes", "8GiB"]));
    let back = folder.path().join("back");
    let get = start(&["get", &served.segment, text(&back)]);
    crate::common::until("the temporary file", || (!names(folder.path()).is_empty()).then_some(()));
    get.signal(Signal::SIGTERM);
    let ended = get.end(Duration::from_secs(20));
    assert_eq!(ended.code, Some(143), "{ended:?}");
    assert_eq!(names(folder.path()), Vec::<String>::new());
}
