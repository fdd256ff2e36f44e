//! Connecting to a server.

use std::net::TcpStream;
use std::os::fd::FromRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use super::settings::{Address, Place};
use super::stream::Stream;
use crate::clock::Clock;
use crate::descriptor::{Descriptor, occupy_standard_streams};
use crate::error::{Error, ErrorKind, Result};

/// Connects to a server. `server`: what it is, such as `memcached`.
pub(in crate::store) fn connect(
    address: &Address,
    server: &str,
    clock: &dyn Clock,
) -> Result<Stream> {
    #[cfg(any(fuzzing, test))]
    if let Some(dialled) = fuzzed::next() {
        let stream = dialled.and_then(Descriptor::new).map(Stream::Tcp);
        return stream.map_err(|error| failed(server, &error));
    }
    occupy_standard_streams();
    let stream = match &address.place {
        Place::Tcp(host, port) => {
            let stream = tcp(address, (host, *port), server, clock)?;
            Descriptor::new(stream).map(Stream::Tcp)
        }
        Place::Unix(path) => {
            let timeout = address.settings.connect_timeout;
            unix(path, timeout, clock).and_then(Descriptor::new).map(Stream::Unix)
        }
    };
    stream.map_err(|error| failed(server, &error))
}

fn tcp(
    address: &Address,
    (host, port): (&str, u16),
    server: &str,
    clock: &dyn Clock,
) -> Result<TcpStream> {
    let timeout = address.settings.connect_timeout;
    let began = clock.now();
    let candidates = address.resolver.candidates(host, port, timeout, clock)?;
    // Half of the time is left in any case.
    let deadline = (began + timeout).max(clock.now() + timeout / 2);
    let mut last = failed(server, &std::io::ErrorKind::TimedOut.into());
    for (place, address) in candidates.addresses.iter().enumerate() {
        let left = deadline.since(clock.now());
        if left.is_zero() {
            break;
        }
        // The others get their share of the time if this one is silent.
        let share = left / (candidates.addresses.len() - place) as u32;
        match TcpStream::connect_timeout(address, share).and_then(without_delay) {
            Ok(stream) => return Ok(stream),
            Err(error) if has_no_descriptor(&error) => return Err(failed(server, &error)),
            Err(error) => last = failed(server, &error),
        }
    }
    Err(match candidates.unresolved {
        Some(why) => unreachable(format!(
            "{last} The host name {host:?} cannot be resolved now ({why}), so its last address was \
             tried."
        )),
        None => last,
    })
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
        return unreachable(format!(
            "It cannot be connected to: this process has too many open files ({error}). \
             Raise its limit (`ulimit -n`)."
        ));
    }
    unreachable(format!("It cannot be connected to ({error}). Is {server} running there?"))
}

fn has_no_descriptor(error: &std::io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

fn without_delay(stream: TcpStream) -> std::io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    Ok(stream)
}

pub(in crate::store) fn unreachable(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unreachable, text)
}

/// Connections that a fuzz target has opened beforehand.
#[cfg(any(fuzzing, test))]
pub(super) mod fuzzed {
    use std::cell::RefCell;
    use std::collections::VecDeque;
    use std::io::{ErrorKind, Result};
    use std::net::TcpStream;

    thread_local! {
        static STREAMS: RefCell<Option<VecDeque<TcpStream>>> = const { RefCell::new(None) };
    }

    /// Sets the sockets for this thread's next connections to a server, in order. Later connections
    /// are refused, because servers name others, and so may a fuzzer. Without sockets, connections
    /// are really dialled again.
    pub fn dial_these(streams: impl IntoIterator<Item = TcpStream>) {
        let streams: VecDeque<TcpStream> = streams.into_iter().collect();
        STREAMS.set((!streams.is_empty()).then_some(streams));
    }

    pub(super) fn next() -> Option<Result<TcpStream>> {
        STREAMS.with_borrow_mut(|streams| {
            let stream = streams.as_mut()?.pop_front();
            Some(stream.ok_or_else(|| ErrorKind::ConnectionRefused.into()))
        })
    }
}
