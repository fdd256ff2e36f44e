//! What `/proc` tells of a process and its host, and where it does not.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use memlock_core::{Client, Error, ErrorKind, Release};
use memlock_tests::fork::in_a_child;

use super::{File, LEASE};

const CLONE_NEWTIME: libc::c_int = 0x80;

fn unshare(what: libc::c_int) {
    // SAFETY: it concerns this process and its children only, which the test has forked.
    let failed = unsafe { libc::unshare(what) };
    assert_eq!(failed, 0, "{}", std::io::Error::last_os_error());
}

/// Mounts of this process and its children, which nothing else sees.
fn own_mounts() {
    unshare(libc::CLONE_NEWNS);
    // SAFETY: the path is valid; no other pointer is used with these flags.
    let failed = unsafe {
        let (root, none) = (c"/".as_ptr(), std::ptr::null());
        libc::mount(none, root, none, libc::MS_REC | libc::MS_PRIVATE, std::ptr::null())
    };
    assert_eq!(failed, 0, "{}", std::io::Error::last_os_error());
}

/// Mounts a directory a second time.
fn bind(from: &Path, to: &Path) {
    let [from, to] = [from, to].map(|path| CString::new(path.as_os_str().as_bytes()).unwrap());
    // SAFETY: the paths are valid, and no other pointer is used with this flag.
    let failed = unsafe {
        let none = std::ptr::null();
        libc::mount(from.as_ptr(), to.as_ptr(), none, libc::MS_BIND, none.cast())
    };
    assert_eq!(failed, 0, "{}", std::io::Error::last_os_error());
}

/// Mounts the `/proc` of this process's PID namespace.
fn mount_proc(options: &str) {
    let options = CString::new(options).unwrap();
    // SAFETY: all pointers are valid texts.
    let failed = unsafe {
        let (kind, path) = (c"proc".as_ptr(), c"/proc".as_ptr());
        libc::mount(kind, path, kind, 0, options.as_ptr().cast())
    };
    assert_eq!(failed, 0, "{}", std::io::Error::last_os_error());
}

fn is_held(url: &str) -> bool {
    let client = Client::connect(url).unwrap();
    client.mutex("m", LEASE).unwrap().try_lock().unwrap().is_none()
}

fn is_refused(error: &Error, why: &[&str]) {
    assert_eq!(error.kind(), ErrorKind::Config, "{error}");
    for why in why.iter().chain(&["mount /proc", "locks.db"]) {
        assert!(error.to_string().contains(why), "{error}");
    }
}

/// The clock of a time namespace is ahead of the host's, in processes that are started in it.
#[test]
fn a_child_in_a_time_namespace_sees_the_same_lock_held() {
    let file = File::new();
    let client = Client::connect(&file.url()).unwrap();
    let mut held = client.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
    let is_held =
        |client: &Client| client.mutex("m", LEASE).unwrap().try_lock().is_ok_and(|m| m.is_none());
    assert!(in_a_child(|| {
        unshare(CLONE_NEWTIME);
        std::fs::write("/proc/self/timens_offsets", "boottime 5000 0").unwrap();
        // From now on the kernel tells the offset of the children, and not of this process.
        let refusals = [
            Client::connect(&file.url()).map(drop).unwrap_err(),
            client.mutex("m", LEASE).unwrap().try_lock().map(drop).unwrap_err(),
        ];
        for error in refusals {
            assert_eq!(error.kind(), ErrorKind::Config, "{error}");
            assert!(error.to_string().contains("in a child process"), "{error}");
        }
        in_a_child(|| is_held(&client) && is_held(&Client::connect(&file.url()).unwrap()))
    }));
    assert_eq!(held.unlock().unwrap(), Release::Released);
}

#[test]
fn a_root_without_proc_is_refused_by_its_name() {
    let file = File::new();
    assert!(in_a_child(|| {
        let root = CString::new(file.directory().as_os_str().as_bytes()).unwrap();
        // SAFETY: the path is valid.
        assert_eq!(unsafe { libc::chroot(root.as_ptr()) }, 0);
        let error = Client::connect("sqlite:///locks.db").map(drop).unwrap_err();
        is_refused(&error, &["/proc/self/status", "No such file", "chroot"]);
        !Path::new("/locks.db").exists()
    }));
}

/// Also with a clock of its own: that it cannot be read is no reason to take it for the host's.
#[test]
fn the_proc_of_other_processes_is_refused_and_other_numbers_are_not() {
    let file = File::new();
    let url = file.url();
    let client = Client::connect(&url).unwrap();
    let mut held = client.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
    assert!(in_a_child(|| {
        own_mounts();
        unshare(libc::CLONE_NEWPID | CLONE_NEWTIME);
        std::fs::write("/proc/self/timens_offsets", "boottime 5000 0").unwrap();
        in_a_child(|| {
            // The first process of its PID namespace has another number in `/proc`.
            assert_eq!(std::process::id(), 1);
            assert!(is_held(&url));
            mount_proc("");
            is_held(&url)
        })
        .then(|| {
            // That `/proc` shows no process of an outer PID namespace.
            let error = Client::connect(&url).map(drop).unwrap_err();
            is_refused(&error, &["/proc/self/status", "No such file", "PID namespace"]);
            let error = client.mutex("m", LEASE).unwrap().try_lock().map(drop).unwrap_err();
            is_refused(&error, &["/proc/self/status"]);
        })
        .is_some()
    }));
    assert_eq!(held.unlock().unwrap(), Release::Released);
}

/// Copies of the files of this process, and the files of another one.
#[test]
fn a_directory_that_only_looks_like_proc_is_refused() {
    let file = File::new();
    let url = file.url();
    let [copy, other, real] = ["copy", "other", "real"].map(|name| file.directory().join(name));
    std::fs::create_dir_all(copy.join("self")).unwrap();
    std::fs::create_dir(&other).unwrap();
    std::fs::create_dir(&real).unwrap();
    std::os::unix::fs::symlink(real.join("1"), other.join("self")).unwrap();
    for shown in [copy, other] {
        assert!(in_a_child(|| {
            own_mounts();
            for name in ["status", "timens_offsets"] {
                let text = std::fs::read(Path::new("/proc/self").join(name)).unwrap();
                let _ = std::fs::write(shown.join("self").join(name), text);
            }
            bind(Path::new("/proc"), &real);
            bind(&shown, Path::new("/proc"));
            let error = Client::connect(&url).map(drop).unwrap_err();
            is_refused(&error, &["/proc/self is not this process"]);
            true
        }));
    }
}

#[test]
fn a_proc_without_the_boot_id_is_refused_by_the_name_of_that_file() {
    let file = File::new();
    let url = file.url();
    assert!(in_a_child(|| {
        own_mounts();
        mount_proc("subset=pid");
        let client = Client::connect(&url).unwrap();
        let error = client.mutex("m", LEASE).unwrap().try_lock().map(drop).unwrap_err();
        is_refused(&error, &["/proc/sys/kernel/random/boot_id", "all its files"]);
        true
    }));
}

#[test]
fn a_process_that_can_open_no_file_is_told_so() {
    let file = File::new();
    let url = file.url();
    assert!(in_a_child(|| {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the limit is valid, and concerns this process only.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &none) }, 0);
        let error = Client::connect(&url).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        error.to_string().contains("too many open files")
    }));
}

/// As of a service that begins as root: the system shows its files in `/proc` to root only.
#[test]
fn a_process_that_was_set_to_another_user_can_lock() {
    const NOBODY: u32 = 65534;
    let file = File::new();
    let url = file.url();
    std::fs::set_permissions(file.directory(), PermissionsExt::from_mode(0o777)).unwrap();
    assert!(in_a_child(|| {
        own_mounts();
        mount_proc("hidepid=2");
        // SAFETY: it concerns this process only.
        assert_eq!(unsafe { libc::setgid(NOBODY) | libc::setuid(NOBODY) }, 0);
        assert!(std::fs::read_dir("/proc/self/ns").is_err() && !is_held(&url));
        true
    }));
}

/// As after `pthread_exit` in `main`: nothing of its first thread can be read.
#[test]
fn a_process_whose_first_thread_has_ended_can_lock() {
    let file = File::new();
    let url = file.url();
    assert!(in_a_child(|| {
        std::thread::spawn(move || {
            while std::fs::read_link("/proc/self/ns/time").is_ok() {
                std::thread::yield_now();
            }
            let is_right = std::panic::catch_unwind(|| !is_held(&url)).unwrap_or(false);
            // SAFETY: it ends the process.
            unsafe { libc::_exit(i32::from(!is_right)) };
        });
        // SAFETY: it ends this thread only, without what its end would run.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
        false
    }));
}
