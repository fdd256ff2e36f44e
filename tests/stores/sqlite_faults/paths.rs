//! Paths that lead to another file by now, in real processes.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::thread;
use std::time::Duration;

use memlock_core::{Client, Extension, Lock, Release};
use memlock_tests::assert_safe;
use memlock_tests::disk::Disk;
use memlock_tests::fork::in_a_child;
use memlock_tests::launch::until;

use super::{File, LEASE, run};

/// How long a client may take to notice that its path leads elsewhere.
const NOTICES: Duration = Duration::from_millis(20);

fn client(path: &Path) -> Client {
    let url = format!("sqlite://{}/locks.db?io_timeout=20s", path.display());
    Client::connect(&url).unwrap()
}

/// Locks `m`, and keeps it until the lease ends.
fn keep(client: &Client) -> bool {
    client.mutex("m", LEASE).unwrap().try_lock().unwrap().map(std::mem::forget).is_some()
}

/// That a lock which another process has got since is neither held nor granted here.
fn has_lost(client: &Client, held: &mut Lock) {
    thread::sleep(NOTICES);
    let again = client.mutex("m", LEASE).unwrap().try_lock().unwrap();
    assert_safe!(again.is_none(), "held twice");
    assert_eq!(held.extend(LEASE).unwrap(), Extension::Lost);
    assert_eq!(held.unlock().unwrap(), Release::Lost);
}

#[test]
fn a_process_follows_a_link_that_is_switched_as_new_processes_do() {
    let file = File::new();
    let (current, new) = (file.directory().join("current"), file.directory().join("new"));
    let release = |number: u32| {
        let directory = file.directory().join(format!("{number}"));
        std::fs::create_dir(&directory).unwrap();
        symlink(directory, &new).unwrap();
        std::fs::rename(&new, &current).unwrap();
    };
    release(42);
    let old = client(&current);
    for number in 43..48 {
        let mut held = old.mutex("m", LEASE).unwrap().try_lock().unwrap().expect("a new file");
        assert!(in_a_child(|| !keep(&client(&current))));
        release(number);
        assert!(in_a_child(|| keep(&client(&current))));
        has_lost(&old, &mut held);
        release(number + 100);
        thread::sleep(NOTICES);
    }
}

/// Nothing wakes it: the lock that it waits for is never released.
#[test]
fn a_process_that_waits_follows_a_link_that_is_switched() {
    let file = File::new();
    let (current, new) = (file.directory().join("current"), file.directory().join("new"));
    let release = |number: u32| {
        std::fs::create_dir(file.directory().join(format!("{number}"))).unwrap();
        symlink(format!("{number}"), &new).unwrap();
        std::fs::rename(&new, &current).unwrap();
    };
    release(42);
    assert!(in_a_child(|| keep(&client(&current))));
    let waits = file.directory().join("waits");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            in_a_child(|| {
                let mutex = client(&current).mutex("m", LEASE).unwrap();
                assert!(mutex.try_lock().unwrap().is_none());
                std::fs::write(&waits, "").unwrap();
                let mut lock = mutex.lock_for(LEASE / 2).unwrap().expect("it is free there");
                lock.unlock().unwrap() == Release::Released
            })
        });
        until("it waits", || waits.exists());
        release(43);
        assert!(waiter.join().unwrap());
    });
}

#[test]
fn a_process_follows_its_path_to_what_is_mounted_over_it() {
    let (here, there) = (Disk::mount().unwrap(), Disk::mount().unwrap());
    let [path, other] = [&here, &there].map(|disk| disk.path().to_str().unwrap());
    let old = client(here.path());
    let mut held = old.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
    run("mount", &["--bind", other, path]);
    assert!(in_a_child(|| keep(&client(here.path()))));
    has_lost(&old, &mut held);
    run("umount", &["--lazy", path]);
    thread::sleep(NOTICES);
    assert!(old.mutex("m", LEASE).unwrap().try_lock().unwrap().is_none(), "it was not released");
    assert!(in_a_child(|| !keep(&client(here.path()))));
}
