//! Where a server listens: a Unix socket.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use memlock_core::{Client, ErrorKind, Release};
use memlock_tests::launch::{as_nobody, give, until};
use memlock_tests::process::{Program, ServerProcess};
use memlock_tests::server::program;
use memlock_tests::sigpipe;

const LEASE: Duration = Duration::from_secs(30);

/// A memcached on a socket and on no port.
#[derive(Debug)]
struct OnSocket(PathBuf);

impl Program for OnSocket {
    fn command(&self, _: u16) -> Command {
        let mut command = Command::new(program());
        command.arg("-s").arg(&self.0).args(["-a", "777"]);
        as_nobody(&mut command);
        command
    }

    fn answers(&self, _: u16, pid: u32) -> bool {
        asked(&self.0, "stats\r\n")
            .is_some_and(|stats| stats.contains(&format!("STAT pid {pid}\r")))
    }
}

/// The first piece of the answer.
fn asked(socket: &Path, command: &str) -> Option<String> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.write_all(command.as_bytes()).ok()?;
    let mut answer = vec![0; 65536];
    let length = stream.read(&mut answer).ok()?;
    Some(String::from_utf8_lossy(&answer[..length]).into_owned())
}

#[test]
fn a_unix_socket_is_as_good_as_a_port() {
    let folder = std::env::temp_dir().join(format!("memlock unix {}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir(&folder).unwrap();
    give(&folder);
    let socket = folder.join("memcached.sock");
    let url = format!("memcached+unix://{}", socket.display()).replace(' ', "%20");
    let connect = || Client::connect(&format!("{url}?io_timeout=20s")).unwrap();
    let server = ServerProcess::start(OnSocket(socket.clone()));
    let (one, two) = (connect(), connect());
    let lock = one.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
    assert!(lock.server().ends_with("memcached.sock"), "{}", lock.server());
    // A waiter is woken.
    let fence = lock.fence();
    let next = thread::scope(|scope| {
        let waiter = scope.spawn(|| two.mutex("m", LEASE).unwrap().lock().unwrap());
        until("it waits", || asked(&socket, "get lock:m%wait\r\n").unwrap().starts_with("VALUE"));
        drop(lock);
        waiter.join().unwrap()
    });
    assert!(next.fence() > fence);
    drop(next);
    // The server is gone, and the request cannot be written.
    let mut lock = one.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
    server.kill();
    let error = sigpipe::is_not_raised(|| lock.unlock()).unwrap_err();
    assert!(error.to_string().contains("memcached.sock"), "{error}");
    assert_eq!(
        one.mutex("n", LEASE).unwrap().try_lock().unwrap_err().kind(),
        ErrorKind::Unreachable
    );
    server.restart();
    assert_eq!(lock.unlock().unwrap(), Release::Lost);
    let mut lock = one.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
    assert_eq!(lock.unlock().unwrap(), Release::Released);
    fs::remove_dir_all(&folder).unwrap();
}
