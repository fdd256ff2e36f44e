//! Connecting to a server.

use std::net::{SocketAddr, TcpStream};
use std::os::fd::FromRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::resolve::{self, resolve};
use super::settings::Place;
use super::stream::Stream;
use crate::clock::Clock;
use crate::error::{Error, Result};

/// The address of a host name that answered before. A name with an IPv4 and an IPv6 address may lead
/// to two servers, so the server remains at the one that answered first, for as long as the name has
/// that address.
#[derive(Clone, Debug)]
pub(in crate::store) struct Pin {
    pub(super) address: SocketAddr,
    /// It is not possible to connect to it: the name may have got another address.
    is_doubtful: Arc<AtomicBool>,
}

impl Pin {
    pub(super) fn new(address: SocketAddr) -> Pin {
        Pin { address, is_doubtful: Arc::default() }
    }

    pub(super) fn doubt(&self) {
        self.is_doubtful.store(true, Ordering::Relaxed);
    }

    /// The address to connect to. `limit`: for how long the host name may be looked up.
    pub(super) fn present(
        &self,
        (host, port): (&str, u16),
        limit: Duration,
        clock: &dyn Clock,
    ) -> SocketAddr {
        if !self.is_doubtful.load(Ordering::Relaxed) {
            return self.address;
        }
        let found = resolve(host, port, limit, clock).unwrap_or_default();
        // A name server that fails for one family answers with the other one.
        let is_of_family = |other: &&SocketAddr| other.is_ipv4() == self.address.is_ipv4();
        found.iter().find(is_of_family).copied().unwrap_or(self.address)
    }
}

/// Connects to a server. `server`: what it is, such as `memcached`.
pub(in crate::store) fn connect(
    place: &Place,
    server: &str,
    pinned: Option<Pin>,
    timeout: Duration,
    clock: &dyn Clock,
) -> Result<Stream> {
    #[cfg(fuzzing)]
    if let Some(stream) = fuzzed::next() {
        return Ok(Stream::Tcp(stream));
    }
    match place {
        Place::Tcp(host, port) => {
            tcp((host, *port), server, pinned, timeout, clock).map(Stream::Tcp)
        }
        Place::Unix(path) => {
            unix(path, timeout, clock).map(Stream::Unix).map_err(|error| failed(server, &error))
        }
    }
}

fn tcp(
    (host, port): (&str, u16),
    server: &str,
    pinned: Option<Pin>,
    timeout: Duration,
    clock: &dyn Clock,
) -> Result<TcpStream> {
    let deadline = clock.now() + timeout;
    let addresses = match &pinned {
        // What is refused at once must not look like a server that does not answer.
        Some(pin) => vec![pin.present((host, port), timeout / 4, clock)],
        None => resolve(host, port, timeout, clock)?,
    };
    let mut last = None;
    for address in addresses {
        let left = deadline.since(clock.now());
        if left.is_zero() {
            break;
        }
        match TcpStream::connect_timeout(&address, left).and_then(without_delay) {
            Ok(stream) => return Ok(stream),
            Err(error) if has_no_descriptor(&error) => return Err(failed(server, &error)),
            Err(error) => last = Some(failed(server, &error)),
        }
    }
    Err(last.unwrap_or_else(|| resolve::too_slow(host, timeout)))
}

/// As [`UnixStream::connect`], which waits without a limit if the server accepts no connections and
/// the queue of those that wait for it is full.
fn unix(path: &Path, timeout: Duration, clock: &dyn Clock) -> std::io::Result<UnixStream> {
    // SAFETY: an all-zero sockaddr_un is valid.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let bytes = path.as_os_str().as_bytes();
    // A zero byte ends the path.
    if bytes.len() >= address.sun_path.len() || bytes.contains(&0) {
        return Err(std::io::Error::other("its path is too long"));
    }
    for (to, &from) in address.sun_path.iter_mut().zip(bytes) {
        *to = from as libc::c_char;
    }
    // SAFETY: socket takes no pointers.
    let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, and nothing else owns it.
    let stream = unsafe { UnixStream::from_raw_fd(fd) };
    let deadline = clock.now() + timeout;
    loop {
        let left = deadline.since(clock.now());
        if left.is_zero() {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        // The limit of writes is that of connecting, too.
        stream.set_write_timeout(Some(left))?;
        // SAFETY: the pointer and length describe `address`, which outlives the call.
        let connected = unsafe {
            let length = size_of_val(&address) as libc::socklen_t;
            libc::connect(fd, (&raw const address).cast(), length)
        };
        if connected == 0 {
            return Ok(stream);
        }
        let error = std::io::Error::last_os_error();
        match error.kind() {
            std::io::ErrorKind::Interrupted => {}
            std::io::ErrorKind::WouldBlock => return Err(std::io::ErrorKind::TimedOut.into()),
            _ => return Err(error),
        }
    }
}

fn failed(server: &str, error: &std::io::Error) -> Error {
    if has_no_descriptor(error) {
        return Error::unreachable(format!(
            "It cannot be connected to: this process has too many open files ({error}). \
             Raise its limit (`ulimit -n`)."
        ));
    }
    Error::unreachable(format!("It cannot be connected to ({error}). Is {server} running there?"))
}

fn has_no_descriptor(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

fn without_delay(stream: TcpStream) -> std::io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Connections that a fuzz target has opened in advance.
#[cfg(fuzzing)]
pub(super) mod fuzzed {
    use std::cell::RefCell;
    use std::collections::VecDeque;
    use std::net::TcpStream;

    thread_local! {
        static STREAMS: RefCell<VecDeque<TcpStream>> = const { RefCell::new(VecDeque::new()) };
    }

    /// Sets the sockets for this thread's next connections to a server, in order. Later
    /// connections are really dialled.
    pub fn dial_these(streams: impl IntoIterator<Item = TcpStream>) {
        STREAMS.with_borrow_mut(|waiting| *waiting = streams.into_iter().collect());
    }

    pub(super) fn next() -> Option<TcpStream> {
        STREAMS.with_borrow_mut(VecDeque::pop_front)
    }
}
