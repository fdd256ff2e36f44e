//! Daemons: programs that close all descriptors which they did not open themselves, those of memlock
//! among them, and then open files with the same numbers.
#![allow(clippy::unwrap_used, reason = "a child that panics fails its test")]

use std::fs::File;
use std::io::{PipeReader, PipeWriter, Write, pipe};
use std::mem::MaybeUninit;
use std::net::{TcpListener, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::thread::sleep;
use std::time::Duration;

use memlock_core::store::Reply;
use memlock_core::{Client, Lock, Release};

use crate::client::{LEASE, connect};
use crate::fork::in_a_child;
use crate::sweeps::{Sweeping, key};

/// After which a connection counts as idle, and is compared before it is used.
const PAUSE: Duration = Duration::from_millis(150);
/// What is in the files of the daemon.
const MINE: &[u8] = b"mine";
const COUNT: u64 = 7;

/// The daemon's files are left alone, and its locks work, if it pauses before it uses memlock again.
///
/// # Panics
/// If they are not, or do not.
#[track_caller]
pub fn keeps_its_files_after_a_pause(url: &str) {
    assert!(
        in_a_child(|| occupies_no_standard_stream(url)),
        "{url}: what is printed would be sent"
    );
    for kind in PIPES.into_iter().chain([Own::file as fn() -> Own, Own::pair]) {
        assert!(in_a_child(|| keeps_its_files(url, kind, PAUSE, &USES)), "{url}: see above");
    }
}

/// As [`keeps_its_files_after_a_pause`], without the pause. Connected sockets may be written to.
///
/// # Panics
/// If anything else is, or a lock does not work.
#[track_caller]
pub fn keeps_its_files_at_once(url: &str) {
    for kind in PIPES.into_iter().chain([Own::file as fn() -> Own]) {
        let kept = in_a_child(|| keeps_its_files(url, kind, Duration::ZERO, &USES));
        assert!(kept, "{url}: see above");
    }
}

/// As [`keeps_its_files_after_a_pause`], with and without the pause, while the reply to a sweep is due.
///
/// # Panics
/// If they are not, or do not.
#[track_caller]
pub fn keeps_its_files_behind_a_sweep(url: &str) {
    for kind in PIPES.into_iter().chain([Own::file as fn() -> Own, Own::pair]) {
        for pause in [Duration::ZERO, PAUSE] {
            assert!(
                in_a_child(|| keeps_its_files(url, kind, pause, &[sweeps])),
                "{url}: see above"
            );
        }
    }
}

/// Whether nothing but `/dev/null` is in the place of the standard streams, all of which the program has
/// closed, while a lock is held and waited for.
fn occupies_no_standard_stream(url: &str) -> bool {
    // SAFETY: nothing that this process opened is used again.
    unsafe { libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0) };
    let (name, client) = (format!("daemon {}", std::process::id()), connect(url));
    let _held = try_lock(&client, &name);
    let mut waits = client.mutex(&name, LEASE).unwrap().lock_for(PAUSE).unwrap();
    let is_free = |stream: RawFd| {
        let mut stat = MaybeUninit::<libc::stat>::zeroed();
        // SAFETY: `stat` is valid when it is zero, and writable.
        let (found, stat) = unsafe { (libc::fstat(stream, stat.as_mut_ptr()), stat.assume_init()) };
        found != 0 || stat.st_mode & libc::S_IFMT == libc::S_IFCHR
    };
    waits.take().is_none() && (0..=2).all(is_free)
}

fn keeps_its_files(url: &str, kind: fn() -> Own, pause: Duration, uses: &[Use]) -> bool {
    let name = format!("daemon {}", std::process::id());
    for begin in uses {
        // What the test has open is not the daemon's.
        close_all();
        let go_on = begin(url, name.clone());
        let files = replace_all(kind);
        sleep(pause);
        go_on();
        files.iter().for_each(Untouched::assert);
    }
    true
}

/// What the daemon does after it has closed all descriptors.
type Rest = Box<dyn FnOnce()>;

/// What it does before, at a server, by this name.
type Use = fn(&str, String) -> Rest;

const USES: [Use; 3] = [releases, inserts, closes];

fn try_lock(client: &Client, name: &str) -> Lock {
    client.mutex(name, LEASE).unwrap().try_lock().unwrap().unwrap()
}

fn releases(url: &str, name: String) -> Rest {
    let client = connect(url);
    let mut lock = try_lock(&client, &name);
    Box::new(move || {
        assert_eq!(lock.unlock().unwrap(), Release::Released);
        assert_eq!(try_lock(&client, &name).unlock().unwrap(), Release::Released);
    })
}

/// A large request is written while its replies are read.
fn inserts(url: &str, name: String) -> Rest {
    let client = connect(url);
    let mut list = client.distinct_list(&name).unwrap();
    let _ = list.set_up(LEASE).unwrap();
    Box::new(move || {
        let keys: Vec<String> = (0..60).map(|number| format!("{number:0400}")).collect();
        assert_eq!(list.insert_many(&keys).unwrap().unwrap().len(), keys.len());
        let _ = list.tear_down().unwrap();
    })
}

fn closes(url: &str, name: String) -> Rest {
    let client = connect(url);
    assert_eq!(try_lock(&client, &name).unlock().unwrap(), Release::Released);
    Box::new(move || drop(client))
}

fn sweeps(url: &str, name: String) -> Rest {
    let sweeping = Sweeping::at(url);
    sweeping.store_until_due();
    Box::new(move || assert!(matches!(sweeping.add(&key(&name)), Ok(Reply::Stored(_)))))
}

/// Closes all descriptors, and opens files with the same numbers.
fn replace_all(kind: fn() -> Own) -> Vec<Untouched> {
    // SAFETY: fcntl takes no pointers here.
    let is_open = |number: &RawFd| unsafe { libc::fcntl(*number, libc::F_GETFD) } >= 0;
    let highest = (0..1024).rev().find(is_open).unwrap();
    assert!(highest > 2, "memlock has nothing open");
    close_all();
    let mut files = Vec::new();
    while !(3..=highest).all(|number| is_open(&number)) {
        files.push(Untouched::new(kind()));
    }
    files
}

fn close_all() {
    // SAFETY: nothing that this process opened is used again, except by memlock.
    let closed = unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
    assert_eq!(closed, 0, "close_range: {}", std::io::Error::last_os_error());
}

/// A file of the daemon.
enum Own {
    File(File),
    Pipe(PipeReader, PipeWriter),
    Pair(UnixStream, UnixStream),
    Datagrams(UdpSocket),
    Listener(TcpListener),
    Event(File),
}

/// All that are neither files with positions nor connected sockets.
const PIPES: [fn() -> Own; 4] = [Own::pipe, Own::datagrams, Own::listener, Own::event];

impl Own {
    fn file() -> Own {
        // SAFETY: the name ends with a NUL; the descriptor is new, and nothing else owns it.
        let mut file = unsafe { File::from_raw_fd(libc::memfd_create(c"mine".as_ptr(), 0)) };
        file.write_all(MINE).unwrap();
        Own::File(file)
    }

    fn pipe() -> Own {
        let (reader, mut writer) = pipe().unwrap();
        writer.write_all(MINE).unwrap();
        Own::Pipe(reader, writer)
    }

    fn pair() -> Own {
        let (mut one, mut other) = UnixStream::pair().unwrap();
        one.write_all(MINE).unwrap();
        other.write_all(MINE).unwrap();
        Own::Pair(one, other)
    }

    fn datagrams() -> Own {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.send_to(MINE, socket.local_addr().unwrap()).unwrap();
        Own::Datagrams(socket)
    }

    fn listener() -> Own {
        Own::Listener(TcpListener::bind("127.0.0.1:0").unwrap())
    }

    fn event() -> Own {
        // SAFETY: the descriptor is new, and nothing else owns it.
        let mut event = unsafe { File::from_raw_fd(libc::eventfd(0, 0)) };
        event.write_all(&COUNT.to_ne_bytes()).unwrap();
        Own::Event(event)
    }

    fn descriptors(&self) -> Vec<RawFd> {
        match self {
            Own::File(file) | Own::Event(file) => vec![file.as_raw_fd()],
            Own::Pipe(reader, writer) => vec![reader.as_raw_fd(), writer.as_raw_fd()],
            Own::Pair(one, other) => vec![one.as_raw_fd(), other.as_raw_fd()],
            Own::Datagrams(socket) => vec![socket.as_raw_fd()],
            Own::Listener(listener) => vec![listener.as_raw_fd()],
        }
    }

    fn assert_content(&self) {
        match self {
            Own::File(file) => {
                let mut content = [0; 64];
                let length = file.read_at(&mut content, 0).unwrap();
                assert_eq!(&content[..length], MINE);
            }
            Own::Pipe(reader, _) => assert_eq!(received(reader), MINE),
            Own::Pair(one, other) => {
                assert_eq!(received(one), MINE);
                assert_eq!(received(other), MINE);
            }
            Own::Datagrams(socket) => {
                socket.peer_addr().unwrap_err();
                assert_eq!(received(socket), MINE);
            }
            Own::Listener(listener) => {
                UdpSocket::bind(listener.local_addr().unwrap()).unwrap();
                std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            }
            Own::Event(event) => assert_eq!(received(event), COUNT.to_ne_bytes()),
        }
    }
}

/// All that can be read without waiting.
fn received(from: &impl AsRawFd) -> Vec<u8> {
    let mut all = Vec::new();
    let mut watched = libc::pollfd { fd: from.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one pollfd is given.
    while unsafe { libc::poll(&raw mut watched, 1, 0) } == 1 {
        let mut bytes = [0_u8; 64];
        // SAFETY: the buffer is as long as is said.
        let read = unsafe { libc::read(watched.fd, bytes.as_mut_ptr().cast(), bytes.len()) };
        assert!(read > 0, "{read}: {}", std::io::Error::last_os_error());
        all.extend_from_slice(&bytes[..usize::try_from(read).unwrap()]);
    }
    all
}

/// A file of the daemon, as it was opened.
struct Untouched {
    own: Own,
    states: Vec<[u64; 3]>,
}

impl Untouched {
    fn new(own: Own) -> Untouched {
        let states = own.descriptors().into_iter().map(state).collect();
        Untouched { own, states }
    }

    fn assert(&self) {
        let states: Vec<_> = self.own.descriptors().into_iter().map(state).collect();
        assert_eq!(states, self.states, "inodes and flags");
        self.own.assert_content();
    }
}

/// What it refers to, and its flags.
fn state(descriptor: RawFd) -> [u64; 3] {
    // SAFETY: an all-zero stat is valid, and is written to; fcntl takes no pointers here.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        assert_eq!(libc::fstat(descriptor, &raw mut stat), 0, "it was closed");
        let flags = libc::fcntl(descriptor, libc::F_GETFL);
        [stat.st_dev, stat.st_ino, u64::try_from(flags).unwrap()]
    }
}
