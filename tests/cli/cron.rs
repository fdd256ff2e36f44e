//! `examples/cron`: the job runs once a day, on whichever host comes first.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use memlock_tests::assert_safe;
use memlock_tests::server::Memcached;

use crate::run::Folder;
use crate::tool::{Said, done, path};

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/cron")
}

/// Runs the crontab's line as cron does: by sh, with the table's variables and hardly anything
/// else.
fn fire(server: &Memcached, reports: &Path, day: &str, work: &str) -> Said {
    let table = fs::read_to_string(example().join("crontab")).unwrap();
    let mut lines = table.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut command = Command::new("sh");
    command.env_clear();
    let line = lines.find(|line| match line.split_once('=') {
        Some((name, value))
            if name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_') =>
        {
            command.env(name, value);
            false
        }
        _ => true,
    });
    let job = line.unwrap().splitn(6, ' ').last().unwrap();
    assert!(!job.contains('%') && job.starts_with("memlock run"), "{job}");
    let path =
        format!("{}:{}:/usr/bin:/bin", path().parent().unwrap().display(), example().display());
    command.args(["-c", job]).env("MEMLOCK_URL", server.url()).env("PATH", path);
    command.env("REPORTS", reports).env("DAY", day).env("WORK", work);
    done(command)
}

fn reports(folder: &Path) -> Vec<String> {
    let mut found: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.starts_with('.'))
        .collect();
    found.sort();
    found
}

#[test]
fn one_of_many_hosts_runs_the_job_once_a_day() {
    let server = Memcached::start();
    let folder = Folder::new("cron");
    for day in ["2026-11-22", "2026-11-23"] {
        let said: Vec<Said> = thread::scope(|scope| {
            let hosts: Vec<_> = (0..5)
                .map(|_| scope.spawn(|| fire(&server, &folder.0, day, "sleep 0.5")))
                .collect();
            hosts.into_iter().map(|host| host.join().unwrap()).collect()
        });
        assert!(
            said.iter()
                .all(|said| said.code == Some(0) && said.out.is_empty() && said.err.is_empty()),
            "{said:?}"
        );
        // One whose clock is late.
        assert_eq!(fire(&server, &folder.0, day, "false").code, Some(0));
    }
    let reports = reports(&folder.0);
    assert_eq!(reports.len(), 2, "{reports:?}");
    assert!(
        reports[0].starts_with("2026-11-22.") && reports[1].starts_with("2026-11-23."),
        "{reports:?}"
    );
    let fence = |report: &str| report.rsplit('.').next().unwrap().parse::<u64>().unwrap();
    assert_safe!(fence(&reports[0]) < fence(&reports[1]), "{reports:?}");
}

#[test]
fn the_server_of_the_crontab_is_the_same_for_all_hosts() {
    let table = fs::read_to_string(example().join("crontab")).unwrap();
    let url = table.lines().find_map(|line| line.strip_prefix("MEMLOCK_URL=")).unwrap();
    assert!(url.starts_with("memcached://"), "{url}");
    for own in ["127.", "localhost", "::1", "0.0.0.0"] {
        assert!(!url.contains(own), "each host has another server at {url}");
    }
}

#[test]
fn a_job_that_fails_is_told_and_done_by_the_next_host() {
    let server = Memcached::start();
    let folder = Folder::new("cron-fails");
    assert_eq!(fire(&server, &folder.0, "2026-11-22", "false").code, Some(1));
    assert!(reports(&folder.0).is_empty());
    assert_eq!(fire(&server, &folder.0, "2026-11-22", "true").code, Some(0));
    assert_eq!(reports(&folder.0).len(), 1);
    server.kill();
    assert_eq!(fire(&server, &folder.0, "2026-11-23", "true").code, Some(69));
}
