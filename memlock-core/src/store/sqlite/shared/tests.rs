//! Paths that lead to another file by now: links that are switched, directories that are renamed.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::*;
use crate::clock::SystemClock;
use crate::error::ErrorKind;
use crate::name::Keyspace;
use crate::store::Op;
use crate::store::sqlite::connection;
use crate::store::sqlite::path_of;
use crate::store::sqlite::tests::{Directory, descriptors_in};
use crate::store::sqlite::time::BootClock;
use crate::{Client, Extension, Release};

const LEASE: Duration = Duration::from_secs(30);

/// `current` leads to `releases/42`, and there is `releases/43`.
struct Deployment(Directory);

impl Deployment {
    fn new() -> Deployment {
        let deployment = Deployment(Directory::new());
        for release in ["42", "43"] {
            std::fs::create_dir_all(deployment.at("releases").join(release)).unwrap();
        }
        symlink("releases/42", deployment.at("current")).unwrap();
        deployment
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.0.join(path)
    }

    /// As `ln -sfn` and `mv -T` do: there is a link at any moment.
    fn switch(&self, link: &str, to: impl AsRef<Path>) {
        symlink(to, self.at("new")).unwrap();
        std::fs::rename(self.at("new"), self.at(link)).unwrap();
        looked();
    }

    /// How often this process has a database open.
    fn opened(&self, path: &str) -> usize {
        descriptors_in(&self.at(path))
    }
}

fn looked() {
    std::thread::sleep(LOOK_EVERY * 2);
}

fn client(path: &Path) -> Client {
    Client::connect(&format!("sqlite://{}?io_timeout=200ms", path.display())).unwrap()
}

fn is_free(client: &Client) -> bool {
    client.mutex("m", LEASE).unwrap().try_lock().unwrap().is_some()
}

#[test]
fn a_client_follows_its_path_to_another_file_and_the_others_stay() {
    let place = Deployment::new();
    let path = place.at("current/locks.db");
    let (through_link, direct) = (client(&path), client(&place.at("releases/42/locks.db")));
    let mutex = through_link.mutex("m", LEASE).unwrap();
    let mut held = mutex.try_lock().unwrap().unwrap();
    let mut other = direct.mutex("other", LEASE).unwrap().try_lock().unwrap().unwrap();
    assert!(!is_free(&direct));
    assert_eq!(place.opened("releases/42/locks.db"), 1, "one connection for each file");

    place.switch("current", "releases/43");
    let new = client(&place.at("releases/43/locks.db"));
    let mut next = new.mutex("m", LEASE).unwrap().try_lock().unwrap().expect("a new file");
    assert!(mutex.try_lock().unwrap().is_none(), "granted by the old file");
    assert_eq!(held.extend(LEASE).unwrap(), Extension::Lost);
    assert_eq!(held.unlock().unwrap(), Release::Lost);
    assert_eq!(next.unlock().unwrap(), Release::Released);
    assert!(is_free(&through_link));

    assert!(!is_free(&direct), "what was locked there is locked there");
    assert_eq!(other.extend(LEASE).unwrap(), Extension::Extended);
    assert_eq!(other.unlock().unwrap(), Release::Released);
    let counts = || ["releases/42/locks.db", "releases/43/locks.db"].map(|path| place.opened(path));
    assert_eq!(counts(), [1, 1]);
    new.close();
    assert_eq!(counts(), [1, 1]);

    // And back, where the first lock still is: it belongs to a holder that has lost it.
    place.switch("current", "releases/42");
    assert!(!is_free(&through_link));
    assert_eq!(counts(), [1, 0], "it shares the connection again, and the other one is closed");
}

#[test]
fn links_on_every_level_and_of_the_file_are_followed() {
    let place = Deployment::new();
    symlink("current", place.at("app")).unwrap();
    symlink("app/../43/locks.db", place.at("file.db")).unwrap();
    let clients = [client(&place.at("app/locks.db")), client(&place.at("file.db"))];
    // The second one's link leads nowhere until the first switch.
    assert!(clients[1].mutex("m", LEASE).unwrap().try_lock().is_err());
    place.switch("file.db", "app/locks.db");
    let _held = clients[0].mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
    assert!(!is_free(&clients[1]));
    let others = client(&place.at("releases/43/locks.db"));
    let _other = others.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
    let _only_there = others.mutex("there", LEASE).unwrap().try_lock().unwrap().unwrap();
    let is_there =
        |client: &Client| client.mutex("there", LEASE).unwrap().try_lock().unwrap().is_none();
    assert!(!clients.iter().any(is_there));
    place.switch("current", "releases/43");
    assert!(clients.iter().all(is_there));
    place.switch("file.db", place.at("releases/42/locks.db"));
    assert!(is_there(&clients[0]) && !is_there(&clients[1]) && !is_free(&clients[1]));
}

#[test]
fn a_path_that_leads_nowhere_for_a_moment_is_waited_for() {
    let place = Deployment::new();
    let path = place.at("current/locks.db");
    let client = Client::connect(&format!("sqlite://{}?io_timeout=30s", path.display())).unwrap();
    let mut held = client.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
    for (to, is_same) in [("releases/42", true), ("releases/43", false)] {
        std::fs::remove_file(place.at("current")).unwrap();
        looked();
        std::thread::scope(|scope| {
            let extended = scope.spawn(|| held.extend(LEASE).unwrap());
            looked();
            assert!(!extended.is_finished());
            symlink(to, place.at("current")).unwrap();
            let expected = if is_same { Extension::Extended } else { Extension::Lost };
            assert_eq!(extended.join().unwrap(), expected, "{to}");
        });
    }
}

#[test]
fn a_path_that_leads_nowhere_is_an_outage_which_ends() {
    let place = Deployment::new();
    let client = client(&place.at("current/locks.db"));
    let mutex = client.mutex("m", LEASE).unwrap();
    let mut held = mutex.try_lock().unwrap().unwrap();
    let (there, away) = (place.at("releases/42"), place.at("releases/away"));
    for step in 0..3 {
        match step {
            0 => std::fs::rename(&there, &away).unwrap(),
            1 => {
                std::fs::remove_file(place.at("current")).unwrap();
                symlink("current", place.at("current")).unwrap();
            }
            _ => std::fs::remove_file(place.at("current")).unwrap(),
        }
        looked();
        let error = mutex.try_lock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        let said = error.to_string();
        assert!(said.contains("leads to no file any more") && said.contains("current"), "{said}");
    }
    // The file itself is where it was, by another name.
    symlink("releases/away", place.at("current")).unwrap();
    assert!(mutex.try_lock().unwrap().is_none());
    assert_eq!(held.unlock().unwrap(), Release::Released);
}

#[test]
fn a_directory_that_was_renamed_is_followed_by_name() {
    let place = Deployment::new();
    let by_name = client(&place.at("releases/42/locks.db"));
    let mut held = by_name.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
    let by_link = client(&place.at("current/locks.db"));
    assert!(!is_free(&by_link));
    std::fs::rename(place.at("releases/42"), place.at("releases/41")).unwrap();
    std::fs::rename(place.at("releases/43"), place.at("releases/42")).unwrap();
    place.switch("current", "releases/41");
    assert_eq!(held.extend(LEASE).unwrap(), Extension::Lost);
    assert!(is_free(&by_name));
    assert!(!is_free(&by_link), "its file was not replaced");
    assert_eq!(place.opened("releases/41/locks.db"), 1);
    assert_eq!(place.opened("releases/42/locks.db"), 1);
}

/// Two connections of one process to one file would share what is to be told apart.
#[test]
fn a_new_file_that_several_paths_lead_to_gets_one_connection() {
    let place = Deployment::new();
    let paths = ["current/locks.db", "releases/42/locks.db", "releases/43/../42/locks.db"];
    let clients = paths.map(|path| client(&place.at(path)));
    let granted: usize = std::thread::scope(|scope| {
        let threads = clients.each_ref().map(|client| {
            scope.spawn(|| {
                let held = client.mutex("m", LEASE).unwrap().try_lock().unwrap();
                held.map(std::mem::forget).is_some()
            })
        });
        threads.into_iter().map(|thread| usize::from(thread.join().unwrap())).sum()
    });
    assert_eq!(granted, 1);
    assert_eq!(place.opened("releases/42/locks.db"), 1);
}

/// A path may lead to another file between the look at it and its opening.
#[test]
fn no_other_file_is_opened_than_the_one_that_was_seen() {
    let place = Deployment::new();
    let location = |path: &str| Location {
        path: place.at(path),
        trusts_networks: false,
        is_of_another_process: true,
    };
    let clock = BootClock::new(Arc::new(SystemClock)).unwrap();
    let keys = Keyspace::new("").unwrap();
    let key = keys.lock(b"m");
    let run = |id: FileId, path: &str| {
        let _call = fork_safety::enter();
        connection::run(&mut None, id, &location(path), &clock, &keys, &[Op::get(&key)])
    };
    let seen = location("releases/42/locks.db").prepare().unwrap();
    assert!(run(seen, "current/locks.db").is_ok());
    place.switch("current", "releases/43");
    assert!(matches!(run(seen, "current/locks.db"), Err(Stop::BusyOpening)));
    place.switch("current", "releases/44");
    assert!(matches!(run(seen, "current/locks.db"), Err(Stop::BusyOpening)));
}

/// The directory of a process, and not the path that a shell led to it by, is what a relative path
/// begins with.
#[test]
fn a_relative_path_is_that_of_the_directory_at_the_time_of_connecting() {
    let here = std::env::current_dir().unwrap();
    assert_eq!(here, here.canonicalize().unwrap());
    assert_eq!(path_of("a/../locks.db").unwrap(), here.join("a/../locks.db"));
}
