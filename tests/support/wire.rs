//! The server's side of a socket, for the proxy and the fake: accepting, telling requests apart,
//! stopping.

use std::collections::HashMap;
use std::io::Read;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// A burst of this size may be the first piece of a larger write; below it, loopback delivers a
/// write whole.
const LARGE: usize = 32 << 10;
/// How long the next piece of a large write may keep us waiting.
const NEXT_PIECE: Duration = Duration::from_millis(5);

/// A lock that a panicking test has not spoilt for the others.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// By a reset.
    Reset,
    /// It is closed, and then reset.
    ClosedAndReset,
}

/// Listens on a free loopback port and serves each connection on a thread of its own. Dropping it
/// closes all connections and waits for the threads.
#[derive(Debug)]
pub struct Listener {
    address: SocketAddr,
    open: Arc<Connections>,
    thread: Option<JoinHandle<()>>,
    owner: u32,
}

impl Listener {
    /// `serve` returns when its connection is done; it must end once the socket is shut down.
    pub(crate) fn start(
        serve: impl Fn(&TcpStream, &Connections) + Send + Sync + 'static,
    ) -> Listener {
        let listener = TcpListener::bind("127.0.0.1:0").expect("there is a free port on 127.0.0.1");
        Listener::on(listener, serve)
    }

    /// As [`Listener::start`], on a socket that listens.
    pub(crate) fn on(
        listener: TcpListener,
        serve: impl Fn(&TcpStream, &Connections) + Send + Sync + 'static,
    ) -> Listener {
        let address = listener.local_addr().expect("a bound socket has an address");
        let open = Arc::new(Connections::default());
        let accepting = Arc::clone(&open);
        let thread = thread::spawn(move || accept(&listener, &accepting, &serve));
        Listener { address, open, thread: Some(thread), owner: std::process::id() }
    }

    /// `127.0.0.1:PORT`
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// `memcached://127.0.0.1:PORT`
    pub fn url(&self) -> String {
        format!("memcached://{}", self.address)
    }

    pub(crate) fn close_connections(&self) {
        lock(&self.open.list).close_all();
    }

    pub(crate) fn reset_connections(&self, end: End) {
        lock(&self.open.list).reset_all(end);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // A forked child has the sockets, but not the threads: closing would cut its parent's,
        // joining would hang.
        if self.owner != std::process::id() {
            return;
        }
        {
            let mut list = lock(&self.open.list);
            list.stopped = true;
            list.close_all();
        }
        self.open.stopping.notify_all();
        // Wakes the accepting thread; if it cannot be reached, it has ended already.
        let _ = TcpStream::connect(self.address);
        // A panic in a connection's thread has been printed there.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn accept(
    listener: &TcpListener,
    open: &Connections,
    serve: &(impl Fn(&TcpStream, &Connections) + Sync),
) {
    thread::scope(|connections| {
        // An error is about one connection, or about want of descriptors, which passes: go on, but
        // do not spin.
        while open.pause(Duration::ZERO) {
            let Ok((client, _)) = listener.accept() else {
                open.pause(Duration::from_millis(10));
                continue;
            };
            connections.spawn(move || {
                // Without it only speed is lost.
                let _ = client.set_nodelay(true);
                if let Some(_registered) = open.register(&client) {
                    serve(&client, open);
                }
            });
        }
    });
}

/// The sockets to close at the end, and the word that it has come.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    list: Mutex<List>,
    stopping: Condvar,
}

#[derive(Debug, Default)]
struct List {
    stopped: bool,
    next: u64,
    sockets: HashMap<u64, TcpStream>,
}

impl List {
    fn close_all(&self) {
        for socket in self.sockets.values() {
            // It fails when the other side has closed already.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    fn reset_all(&self, end: End) {
        for socket in self.sockets.values() {
            if end == End::ClosedAndReset {
                // It fails when the other side has closed already.
                let _ = socket.shutdown(Shutdown::Write);
            }
            let nowhere = libc::sockaddr {
                sa_family: libc::AF_UNSPEC as libc::sa_family_t,
                sa_data: [0; 14],
            };
            let length = size_of_val(&nowhere) as libc::socklen_t;
            // SAFETY: the address is as long as is said. Connecting a socket to nowhere resets it.
            unsafe { libc::connect(socket.as_raw_fd(), &raw const nowhere, length) };
        }
    }
}

impl Connections {
    /// Has the socket shut down with all others, until the returned guard is dropped. None: it is
    /// the end already.
    pub(crate) fn register(&self, socket: &TcpStream) -> Option<Registered<'_>> {
        let socket = socket.try_clone().ok()?;
        let mut list = lock(&self.list);
        if list.stopped {
            return None;
        }
        let id = list.next;
        list.next += 1;
        list.sockets.insert(id, socket);
        Some(Registered { id, connections: self })
    }

    /// Waits, and tells whether to go on: false at once when the listener is dropped.
    pub(crate) fn pause(&self, time: Duration) -> bool {
        let list = lock(&self.list);
        let waited = self.stopping.wait_timeout_while(list, time, |list| !list.stopped);
        !waited.unwrap_or_else(PoisonError::into_inner).0.stopped
    }
}

/// See [`Connections::register`].
pub(crate) struct Registered<'a> {
    id: u64,
    connections: &'a Connections,
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        lock(&self.connections.list).sockets.remove(&self.id);
    }
}

/// What a client sends, in bursts of whole commands.
pub(crate) struct Requests<'a> {
    stream: &'a TcpStream,
    pending: Vec<u8>,
}

/// Commands that came in one go. A client that closed in the middle of one leaves bytes and no
/// commands.
#[derive(Debug)]
pub(crate) struct Burst {
    pub(crate) bytes: Vec<u8>,
    pub(crate) commands: Vec<Command>,
}

impl<'a> Requests<'a> {
    pub(crate) fn new(stream: &'a TcpStream) -> Requests<'a> {
        Requests { stream, pending: Vec::new() }
    }

    /// The next burst; None when the client has closed.
    pub(crate) fn next(&mut self) -> Option<Burst> {
        loop {
            if let Some(commands) = split(&self.pending)
                && !commands.is_empty()
                && !(self.pending.len() >= LARGE && self.another_piece_comes())
            {
                return Some(Burst { bytes: std::mem::take(&mut self.pending), commands });
            }
            let mut piece = vec![0; 64 << 10];
            match self.stream.read(&mut piece) {
                Ok(length @ 1..) => self.pending.extend_from_slice(&piece[..length]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                _ if self.pending.is_empty() => return None,
                _ => {
                    return Some(Burst {
                        bytes: std::mem::take(&mut self.pending),
                        commands: Vec::new(),
                    });
                }
            }
        }
    }

    fn another_piece_comes(&self) -> bool {
        let wait = |limit| self.stream.set_read_timeout(limit).is_ok();
        let comes = wait(Some(NEXT_PIECE)) && matches!(self.stream.peek(&mut [0]), Ok(1..));
        wait(None) && comes
    }
}

/// One command line, split at spaces; its data block is not kept.
#[derive(Debug)]
pub(crate) struct Command {
    words: Vec<String>,
}

impl Command {
    pub(crate) fn verb(&self) -> &str {
        self.word(0)
    }

    /// Empty when there are not so many.
    pub(crate) fn word(&self, place: usize) -> &str {
        self.words.get(place).map_or("", String::as_str)
    }

    /// The words after the key, in an `ms` after the length.
    fn flags(&self) -> impl Iterator<Item = &str> {
        let before = if self.verb() == "ms" { 3 } else { 2 };
        self.words.iter().skip(before).map(String::as_str)
    }

    pub(crate) fn has_flag(&self, flag: &str) -> bool {
        self.flags().any(|word| word == flag)
    }

    /// The value of a flag such as `C12` or `Oabc`.
    pub(crate) fn flag_value(&self, flag: char) -> Option<&str> {
        self.flags().find_map(|word| word.strip_prefix(flag)).filter(|value| !value.is_empty())
    }

    fn data_length(&self) -> Option<usize> {
        let place = match self.verb() {
            "ms" => 2,
            "set" | "add" | "replace" | "append" | "prepend" | "cas" => 4,
            _ => return None,
        };
        self.word(place).parse().ok()
    }
}

/// The commands in `bytes`, or None when the last one is not complete.
fn split(mut bytes: &[u8]) -> Option<Vec<Command>> {
    let mut commands = Vec::new();
    while !bytes.is_empty() {
        let end = bytes.iter().position(|&byte| byte == b'\n')?;
        let line = String::from_utf8_lossy(&bytes[..end]);
        let command = Command { words: line.split_whitespace().map(str::to_string).collect() };
        let data = command.data_length().map_or(0, |length| length.saturating_add(b"\r\n".len()));
        bytes = bytes[end + 1..].get(data..)?;
        commands.push(command);
    }
    Some(commands)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn commands_are_told_apart_across_their_data_blocks() {
        let commands = split(
            b"ms key 9 ME T5\r\nmd k C3\r\n\r\nmg key v Oab\r\nset k 0 0 2\r\nhi\r\nstats\r\n",
        )
        .unwrap();
        let verbs: Vec<_> = commands.iter().map(Command::verb).collect();
        assert_eq!(verbs, ["ms", "mg", "set", "stats"]);
        assert!(commands[0].has_flag("ME") && !commands[0].has_flag("key"));
        assert_eq!(commands[0].flag_value('T'), Some("5"));
        assert_eq!(commands[1].flag_value('O'), Some("ab"));
    }

    #[test]
    fn a_command_that_is_cut_off_anywhere_is_not_complete() {
        let request = b"ms key 3 ME\r\nabc\r\n";
        assert!((1..request.len()).all(|length| split(&request[..length]).is_none()));
        assert_eq!(split(request).map(|commands| commands.len()), Some(1));
    }

    #[test]
    fn a_large_write_is_one_burst() {
        let (bursts, seen) = std::sync::mpsc::channel();
        let bursts = Mutex::new(bursts);
        let listener = Listener::start(move |client, _| {
            while let Some(burst) = Requests::new(client).next() {
                let _ = lock(&bursts).send(burst.commands.len());
            }
        });
        let mut client = TcpStream::connect(listener.address()).unwrap();
        client.write_all(&b"mg some-key v c t O1\r\n".repeat(50_000)).unwrap();
        assert_eq!(seen.recv(), Ok(50_000));
    }
}
