//! Locks in a file: what commands say where the file is missing, or cannot be used.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use memlock_core::Client;
use memlock_tests::disk::Disk;
use memlock_tests::launch::run;
use serde_json::Value;

use crate::run::Folder;
use crate::tool::{self, Running, Said, done, memlock_at};

/// A directory of a test, and the file in it.
struct Place(Folder);

impl Place {
    fn new(test: &str) -> Place {
        Place(Folder::new(test))
    }

    fn file(&self) -> PathBuf {
        self.0.0.join("locks.db")
    }

    fn url(&self) -> String {
        format!("sqlite://{}", self.file().display())
    }

    fn run(&self, args: &[&str]) -> Said {
        done(memlock_at(&self.url(), args))
    }

    /// The command after a shell has executed `limits`.
    fn limited(&self, limits: &str) -> Said {
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("{limits}; exec \"$0\" run a true")).arg(tool::path());
        done_with(command, &self.url())
    }

    fn is_empty(&self) -> bool {
        fs::read_dir(&self.0.0).unwrap().next().is_none()
    }
}

fn done_with(mut command: Command, url: &str) -> Said {
    command.env("MEMLOCK_URL", url).stdin(Stdio::null());
    done(command)
}

#[test]
fn commands_that_look_create_no_file() {
    let place = Place::new("missing");
    let absent = "There is no file";
    for (args, code) in [
        (&["show", "a"][..], 0),
        (&["ls"], 0),
        (&["release", "--force", "a"], 1),
        (&["release", "--force", "--semaphore", "a"], 66),
        (&["resize", "a", "3"], 66),
    ] {
        let said = place.run(args);
        assert_eq!(said.code, Some(code), "{args:?}: {said:?}");
        assert!(said.err.contains(absent) && said.err.contains("locks.db"), "{args:?}: {said:?}");
        assert!(place.is_empty(), "{args:?}");
    }
    for args in [&["list", "a"][..], &["list", "a", "ids"], &["list", "a", "tear-down"]] {
        assert_eq!(place.run(args).code, Some(66), "{args:?}");
        assert!(place.is_empty(), "{args:?}");
    }
    assert_eq!(place.run(&["ls", "--json"]).out, "[]\n");
    let shown: Value = serde_json::from_str(&place.run(&["show", "a", "--json"]).out).unwrap();
    assert_eq!(shown["lock"]["held"], false);
    let said = place.run(&["doctor"]);
    assert!(
        said.out.contains("not there yet") && said.out.contains("Nothing is there yet"),
        "{said:?}"
    );
    assert!(!said.out.contains("It is fit"), "{said:?}");
    assert_eq!(said.code, Some(0));
    assert!(place.is_empty());
    assert_eq!(place.run(&["run", "a", "true"]).code, Some(0));
    let said = place.run(&["doctor"]);
    assert!(said.out.contains("It is fit for locks"), "{said:?}");
    assert_eq!(place.run(&["show", "a"]).err, "");
}

#[test]
fn a_directory_that_is_not_there_is_no_missing_file() {
    done(memlock_at("sqlite:///nowhere/locks.db", &["show", "a"])).ended(76).complains("create it");
}

#[test]
fn limits_of_the_process_are_named() {
    let place = Place::new("limits");
    for limits in ["ulimit -n 4", "ulimit -n 5", "ulimit -n 6"] {
        let said = place.limited(limits);
        // Fewer are needed where the standard library opens none itself.
        let is_named = said.err.contains("ulimit -n") && said.code == Some(69);
        assert!(is_named || (limits.ends_with('6') && said.code == Some(0)), "{limits}: {said:?}");
    }
    // Without that the signal kills it.
    place.limited("trap '' XFSZ; ulimit -f 8").ended(69).complains("ulimit -f");
}

/// The index of the log is the first file with more than a few bytes.
#[test]
fn a_disk_without_room_for_the_index_is_full() {
    let disk = Disk::mount().unwrap();
    let file = disk.path().join("locks.db");
    let url = format!("sqlite://{}", file.display());
    fs::write(&file, "").unwrap();
    disk.fill();
    done(memlock_at(&url, &["run", "a", "true"])).ended(69).complains("The disk is full");
    disk.empty();
    assert_eq!(done(memlock_at(&url, &["run", "a", "true"])).code, Some(0));
}

/// Stopped inside of a transaction, as by a debugger.
#[test]
fn the_process_that_keeps_the_file_locked_is_named() {
    let place = Place::new("locked");
    assert_eq!(place.run(&["run", "a", "true"]).code, Some(0));
    // As SQLite does: a lock on the byte of writers.
    let script = "
import fcntl, os, sys, time
client = open(sys.argv[1] + '-shm', 'r+b')
fcntl.lockf(client, fcntl.LOCK_EX, 1, 120)
print('locked', flush=True)
time.sleep(60)
";
    // Keeps the index there, which the last connection would remove.
    let client = Client::connect(&place.url()).unwrap();
    let lock = client.mutex("held", Duration::from_secs(60)).unwrap().lock().unwrap();
    let mut command = Command::new("python3");
    command.arg("-c").arg(script).arg(place.file());
    let mut locker = Running::start(command);
    assert_eq!(locker.line(), "locked");
    let url = format!("{}?io_timeout=200ms", place.url());
    let said = done(memlock_at(&url, &["run", "a", "true"]));
    assert_eq!(said.code, Some(69));
    assert!(said.err.contains(&format!("Process {} (python3)", locker.pid())), "{said:?}");
    drop(locker);
    drop(lock);
}

/// Runs the command as a user without rights.
#[test]
fn a_directory_that_cannot_be_written_is_named() {
    let place = Place::new("directory");
    fs::write(place.file(), "").unwrap();
    fs::set_permissions(place.file(), fs::Permissions::from_mode(0o666)).unwrap();
    // Where it is built, others may not look. A child of another test could have a file open that we
    // write.
    let command = place.0.0.join("memlock");
    let mut copy = Command::new("cp");
    copy.arg(tool::path()).arg(&command);
    run(copy);
    fs::set_permissions(&place.0.0, fs::Permissions::from_mode(0o555)).unwrap();
    let as_nobody = |args: &[&str]| {
        let mut command = Command::new(&command);
        command.args(args);
        // SAFETY: geteuid always succeeds.
        if unsafe { libc::geteuid() } == 0 {
            command.uid(65534).gid(65534);
        }
        done_with(command, &place.url())
    };
    let said = as_nobody(&["run", "a", "true"]);
    assert_eq!(said.code, Some(76));
    let directory = format!("may not create files in the directory {}", place.0.0.display());
    assert!(said.err.contains(&directory), "{said:?}");
    fs::remove_file(place.file())
        .or_else(|_| {
            fs::set_permissions(&place.0.0, fs::Permissions::from_mode(0o755))?;
            fs::remove_file(place.file())?;
            fs::set_permissions(&place.0.0, fs::Permissions::from_mode(0o555))
        })
        .unwrap();
    as_nobody(&["run", "a", "true"]).ended(76).complains(&directory);
    let said = as_nobody(&["doctor"]);
    assert!(said.code == Some(2) && said.out.contains("cannot be written"), "{said:?}");
    fs::set_permissions(&place.0.0, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn no_message_shows_a_password() {
    for url in [
        "sqlite://user:secret@host/x.db",
        "memcached://user:secret@host",
        "memcached:user:secret@host",
        "memory://user:secret@host",
        "redis+unix:///user:secret@host",
        "redis://user:secret%40host",
        "mysql://user:secret@tcp(host:3306)/x",
        "postgresql://user:secret@host/x?host=other",
        "carrier://user:secret@host",
    ] {
        let said = done(memlock_at(url, &["show", "a"]));
        assert_eq!(said.code, Some(78), "{said:?}");
        assert!(said.err.contains("***") && !said.err.contains("secret"), "{said:?}");
    }
}
