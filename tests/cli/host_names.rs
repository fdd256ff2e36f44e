//! A server by its host name: a name server that does not answer, and a name that gets another
//! address. The names are in files that are mounted over those of the machine, for the command alone;
//! only root may do that.

use std::fs;
use std::net::UdpSocket;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use memlock_tests::hosts::Hosts;
use memlock_tests::server::Memcached;

use crate::run::Folder;
use crate::tool::{Running, done, eventually, heeding_keys, path};

/// The command on the memcached of this URL. In its eyes `/etc/<name>` has the content of the file
/// in the folder.
fn with_file(folder: &Folder, name: &str, url: &str, args: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "sh", "-c", r#"mount --bind "$0" "/etc/$1" && shift && exec "$@""#])
        .arg(folder.0.join(name))
        .arg(name)
        .arg(path())
        .args(args)
        .env("MEMLOCK_URL", url)
        .stdin(Stdio::null());
    heeding_keys(&mut command);
    command
}

fn is_allowed() -> bool {
    let tried =
        Command::new("unshare").args(["--mount", "mount", "--bind", "/etc", "/mnt"]).status();
    let is_allowed = tried.is_ok_and(|status| status.success());
    if !is_allowed {
        eprintln!("NOT PART OF IT: host names: no file can be mounted here");
    }
    is_allowed
}

#[test]
fn a_name_server_that_does_not_answer_holds_nothing_up() {
    let (true, Ok(hosts)) = (is_allowed(), Hosts::new(1)) else { return };
    let folder = Folder::new("name-server");
    fs::write(folder.0.join("resolv.conf"), "nameserver 127.0.0.1\n").unwrap();
    let ended = std::thread::spawn(move || {
        hosts.enter(0).unwrap();
        let _name_server = UdpSocket::bind("127.0.0.1:53").unwrap();
        let url = "memcached://locks.test:7?connect_timeout=300ms";
        let began = Instant::now();
        let args = ["run", "-n", "x", "--", "true"];
        (done(with_file(&folder, "resolv.conf", url, &args)), began.elapsed())
    });
    let (said, took) = ended.join().unwrap();
    assert_eq!(said.code, Some(69), "{said:?}");
    assert!(said.err.contains("locks.test") && said.err.contains("was not resolved"), "{said:?}");
    // The library of C gives up after ten seconds.
    assert!(took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn a_lock_follows_the_name_of_its_server_to_another_address() {
    if !is_allowed() {
        return;
    }
    let folder = Folder::new("moved");
    let hosts = folder.0.join("hosts");
    fs::write(&hosts, "127.0.0.2 locks.test\n").unwrap();
    let server = Memcached::start();
    server.restart_with(&["-l", "127.0.0.2"]);
    let port = server.address().split_once(':').unwrap().1.to_owned();
    let url = format!("memcached://locks.test:{port}?guard=4s");
    let args = ["run", "m", "--lease", "4s", "--", "sh", "-c", "echo held; exec sleep 1000"];
    let mut running = Running::start(with_file(&folder, "hosts", &url, &args));
    assert_eq!(running.line(), "held");

    // From now on it is at 127.0.0.1 only.
    server.restart();
    fs::write(&hosts, "127.0.0.1 locks.test\n").unwrap();
    eventually("the lock is put back", || server.plain().get("lock:m"));
    assert!(running.is_running());
    running.signal(libc::SIGTERM);
    let said = running.ends();
    assert_eq!(said.code, Some(128 + libc::SIGTERM), "{said:?}");
    assert!(!said.err.contains("lost"), "{said:?}");
    assert!(server.plain().get("lock:m").is_none());
}
