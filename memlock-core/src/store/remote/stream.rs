//! TCP, TLS or a Unix socket.

use std::fmt;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::descriptor::Descriptor;
use crate::store::send::send;
#[cfg(feature = "tls")]
use crate::store::tls::Encrypted;

/// A connected socket.
pub(in crate::store) enum Stream {
    Tcp(Descriptor<TcpStream>),
    #[cfg(feature = "tls")]
    Tls(Box<Encrypted>),
    Unix(Descriptor<UnixStream>),
}

/// A socket of either kind.
enum Socket<'a> {
    Tcp(&'a Descriptor<TcpStream>),
    Unix(&'a Descriptor<UnixStream>),
}

impl Stream {
    fn socket(&self) -> Socket<'_> {
        match self {
            Stream::Tcp(stream) => Socket::Tcp(stream),
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => Socket::Tcp(stream.socket()),
            Stream::Unix(stream) => Socket::Unix(stream),
        }
    }

    fn fd(&self) -> RawFd {
        match self.socket() {
            Socket::Tcp(stream) => stream.as_raw_fd(),
            Socket::Unix(stream) => stream.as_raw_fd(),
        }
    }

    /// Sets the time limit of each read and each write.
    pub(in crate::store) fn set_timeouts(&self, timeout: Duration) -> std::io::Result<()> {
        let limit = Some(timeout);
        match self.socket() {
            Socket::Tcp(stream) => {
                stream.set_read_timeout(limit).and_then(|()| stream.set_write_timeout(limit))
            }
            Socket::Unix(stream) => {
                stream.set_read_timeout(limit).and_then(|()| stream.set_write_timeout(limit))
            }
        }
    }

    /// The local address, and the server's.
    pub(super) fn ends(&self) -> (Option<IpAddr>, Option<SocketAddr>) {
        match self.socket() {
            Socket::Tcp(stream) => {
                (stream.local_addr().ok().map(|local| local.ip()), stream.peer_addr().ok())
            }
            // Both ends are on this host.
            Socket::Unix(_) => (Some(Ipv4Addr::LOCALHOST.into()), None),
        }
    }

    /// Whether the program has left the socket open, and has no other file with its number.
    pub(super) fn is_ours(&self) -> bool {
        match self.socket() {
            Socket::Tcp(stream) => stream.is_ours(),
            Socket::Unix(stream) => stream.is_ours(),
        }
    }

    /// Whether neither the program nor the server has closed the connection, and the server has sent
    /// nothing.
    pub(super) fn is_open_and_quiet(&mut self) -> bool {
        if !self.is_ours() {
            return false;
        }
        match self {
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.is_open_and_quiet(|socket| has_more(socket.as_raw_fd())),
            _ => has_more(self.fd()) == Some(false),
        }
    }

    /// Waits until something can be read or written.
    pub(super) fn wait_until_ready(&self, limit: Duration) {
        // The caller tries both directions again.
        let _ = self.wait_for(libc::POLLIN | libc::POLLOUT, limit);
    }

    /// Waits until something can be read. False if nothing can be.
    pub(super) fn wait_for_input(&self, limit: Duration) -> bool {
        self.wait_for(libc::POLLIN, limit)
    }

    fn wait_for(&self, events: libc::c_short, limit: Duration) -> bool {
        let mut socket = libc::pollfd { fd: self.fd(), events, revents: 0 };
        let millis = limit.as_millis().clamp(1, 60_000) as libc::c_int;
        // SAFETY: one valid pollfd is given.
        unsafe { libc::poll(&mut socket, 1, millis) > 0 }
    }

    pub(super) fn set_nonblocking(&self, nonblocking: bool) -> std::io::Result<()> {
        match self.socket() {
            Socket::Tcp(stream) => stream.set_nonblocking(nonblocking),
            Socket::Unix(stream) => stream.set_nonblocking(nonblocking),
        }
    }
}

/// Whether bytes can be read without waiting; `None` if the connection was closed.
fn has_more(fd: RawFd) -> Option<bool> {
    let mut byte = 0_u8;
    // SAFETY: one writable byte is given for one byte.
    let peeked =
        unsafe { libc::recv(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) };
    match peeked {
        0 => None,
        1.. => Some(true),
        _ if std::io::Error::last_os_error().kind() == std::io::ErrorKind::WouldBlock => {
            Some(false)
        }
        _ => None,
    }
}

impl Read for Stream {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Stream::Tcp(stream) => (&**stream).read(buffer),
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.read(buffer),
            Stream::Unix(stream) => (&**stream).read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Stream::Tcp(stream) => send(&**stream, bytes),
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.write(bytes),
            Stream::Unix(stream) => send(&**stream, bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.flush(),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({})", self.fd())
    }
}
