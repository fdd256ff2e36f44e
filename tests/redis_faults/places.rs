//! Unix sockets.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread;

use memlock_core::{ErrorKind, Release};
use memlock_tests::client::connect;
use memlock_tests::daemon;
use memlock_tests::launch::until;
use memlock_tests::process::Server;
use memlock_tests::sigpipe;

use crate::stores::redis::{Redis, reply};
use crate::{LEASE, PATIENCE, client, refused, works};

fn url_of(socket: &Path) -> String {
    format!("redis+unix://{}", socket.display())
}

#[test]
fn a_unix_socket_is_as_good_as_a_port() {
    let directory = std::env::temp_dir().join(format!("memlock unix {}", std::process::id()));
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir(&directory).unwrap();
    let socket = directory.join("redis.sock");
    let server =
        Redis::start(&["--unixsocket", socket.to_str().unwrap(), "--unixsocketperm", "777"]);
    let url = url_of(&socket).replace(' ', "%20");
    let local = connect(&url);
    works(&local, "m");
    works(&connect(&format!("{url}?db=3")), "m");
    // Both ways lead to the same locks, and waiters are woken.
    let remote = client(&server);
    let lock = remote.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| local.mutex("m", LEASE).unwrap().lock_for(PATIENCE));
        let mut admin = server.connection();
        until("it waits", || reply::<usize>(&mut admin, &["EXISTS", "{lock:m}%wait"]) > 0);
        drop(lock);
        assert!(waiter.join().unwrap().unwrap().is_some());
    });
    daemon::keeps_its_files_at_once(&url);
    daemon::keeps_its_files_after_a_pause(&url);
    // The server closes connections, and the next request cannot be written.
    let mut lock = local.mutex("m", LEASE).unwrap().try_lock().unwrap().unwrap();
    let mut tool = local.admin(0).unwrap();
    let () = server.reply(&["CLIENT", "KILL", "TYPE", "normal"]);
    assert_eq!(tool.keys(&|key| key == "lock:m").unwrap().len(), 1);
    let () = server.reply(&["CLIENT", "KILL", "TYPE", "normal"]);
    assert_eq!(sigpipe::is_not_raised(|| lock.unlock()).unwrap(), Release::Released);
    let () = server.reply(&["CONFIG", "SET", "requirepass", "a b&c"]);
    works(&connect(&format!("{url}?password=a%20b%26c")), "n");
    works(&connect(&format!("{url}?user=default&password=a%20b%26c")), "n");
    refused(&format!("{url}?password=wrong"), ErrorKind::Config, "does not accept");
    let () = redis_with_password(&server);
    // A server that does not accept connections, with a queue that is full.
    server.process().pause();
    let full: Vec<_> = (0..600).map_while(|_| connect_at_once(&socket)).collect();
    assert!(full.len() < 600, "the queue has no end");
    // It ends while the server stands still.
    let quick = format!("{url}?connect_timeout=300ms&io_timeout=300ms");
    refused(&quick, ErrorKind::Unreachable, "redis.sock");
    server.process().resume();
    drop(full);
    drop(server);
    refused(&url, ErrorKind::Unreachable, "redis.sock");
    fs::remove_dir_all(&directory).unwrap();
    refused(&url, ErrorKind::Unreachable, "No such file");
}

fn redis_with_password(server: &Redis) {
    let url = format!("redis://:a%20b%26c@{}", server.process().address());
    let mut admin = redis::Client::open(url).unwrap().get_connection().unwrap();
    reply(&mut admin, &["CONFIG", "SET", "requirepass", ""])
}

/// Connects if that is possible without waiting.
fn connect_at_once(path: &Path) -> Option<std::os::fd::OwnedFd> {
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
    // SAFETY: socket returns a new descriptor that nothing else owns.
    let socket = unsafe {
        OwnedFd::from_raw_fd(libc::socket(
            libc::AF_UNIX,
            libc::SOCK_STREAM | libc::SOCK_NONBLOCK,
            0,
        ))
    };
    // SAFETY: an all-zero sockaddr_un is valid.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    for (to, from) in address.sun_path.iter_mut().zip(path.to_str().unwrap().bytes()) {
        *to = from as libc::c_char;
    }
    let length = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the pointer and length describe `address`, which outlives the call.
    let connected =
        unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), length) };
    (connected == 0).then_some(socket)
}

/// Not a test of its own: what a process without rights finds.
#[test]
fn visitor() {
    let Ok(url) = std::env::var("MEMLOCK_TEST_REDIS_SOCKET") else { return };
    refused(&url, ErrorKind::Unreachable, "Permission denied");
}

#[test]
fn a_unix_socket_that_may_not_be_used_is_named() {
    let directory =
        std::env::temp_dir().join(format!("memlock-unix-closed-{}", std::process::id()));
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir(&directory).unwrap();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
    let socket = directory.join("redis.sock");
    let server =
        Redis::start(&["--unixsocket", socket.to_str().unwrap(), "--unixsocketperm", "700"]);
    // Where it is built, others may not look. A child of another test could have a file open that we write.
    let program = directory.join("visitor");
    let mut copy = std::process::Command::new("cp");
    copy.arg(std::env::current_exe().unwrap()).arg(&program);
    memlock_tests::launch::run(copy);
    let mut visitor = std::process::Command::new(program);
    visitor.args(["places::visitor", "--exact"]).env("MEMLOCK_TEST_REDIS_SOCKET", url_of(&socket));
    memlock_tests::launch::as_nobody(&mut visitor);
    // SAFETY: geteuid always succeeds.
    if unsafe { libc::geteuid() } != 0 {
        fs::set_permissions(&socket, fs::Permissions::from_mode(0o000)).unwrap();
    }
    let output = visitor.current_dir("/").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    drop(server);
    fs::remove_dir_all(&directory).unwrap();
}
