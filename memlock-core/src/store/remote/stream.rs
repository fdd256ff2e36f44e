//! TCP, TLS or a Unix socket.

use std::fmt;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

#[cfg(feature = "tls")]
use crate::store::tls::Encrypted;

/// A connected socket.
pub(in crate::store) enum Stream {
    Tcp(TcpStream),
    #[cfg(feature = "tls")]
    Tls(Box<Encrypted>),
    Unix(UnixStream),
}

/// A socket of either kind.
enum Socket<'a> {
    Tcp(&'a TcpStream),
    Unix(&'a UnixStream),
}

impl Stream {
    /// Begins to connect, and does not wait: until the connection is open, reading and writing would
    /// block.
    pub(super) fn begin(address: SocketAddr) -> std::io::Result<Stream> {
        let (storage, length) = raw(address);
        let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: socket takes no pointers.
        let fd = unsafe { libc::socket(i32::from(storage.ss_family), kind, 0) };
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and nothing else owns it.
        let stream = unsafe { TcpStream::from_raw_fd(fd) };
        // SAFETY: the pointer and the length describe `storage`, which outlives the call.
        if unsafe { libc::connect(fd, (&raw const storage).cast(), length) } != 0 {
            let error = std::io::Error::last_os_error();
            if error.raw_os_error() != Some(libc::EINPROGRESS) {
                return Err(error);
            }
        }
        Ok(Stream::Tcp(stream))
    }

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

    /// Whether the server has neither closed the connection nor sent anything.
    pub(super) fn is_open_and_quiet(&mut self) -> bool {
        match self {
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.is_open_and_quiet(|socket| has_more(socket.as_raw_fd())),
            _ => has_more(self.fd()) == Some(false),
        }
    }

    /// Waits until something can be read or written.
    pub(super) fn wait_until_ready(&self, limit: Duration) {
        let mut socket =
            libc::pollfd { fd: self.fd(), events: libc::POLLIN | libc::POLLOUT, revents: 0 };
        let millis = limit.as_millis().clamp(1, 60_000) as libc::c_int;
        // SAFETY: one valid pollfd is given. The result is not needed: the caller tries both
        // directions again.
        unsafe { libc::poll(&mut socket, 1, millis) };
    }

    /// Whether something arrives within that time. Zero: whether it has.
    pub(super) fn is_readable_within(&self, limit: Duration) -> bool {
        let mut socket = libc::pollfd { fd: self.fd(), events: libc::POLLIN, revents: 0 };
        let limit = libc::timespec {
            tv_sec: limit.as_secs().min(60) as libc::time_t,
            tv_nsec: limit.subsec_nanos() as _,
        };
        // SAFETY: one valid pollfd and a valid timespec are given, and the signal mask is not changed.
        unsafe { libc::ppoll(&mut socket, 1, &limit, std::ptr::null()) != 0 }
    }

    pub(super) fn set_nonblocking(&self, nonblocking: bool) -> std::io::Result<()> {
        match self.socket() {
            Socket::Tcp(stream) => stream.set_nonblocking(nonblocking),
            Socket::Unix(stream) => stream.set_nonblocking(nonblocking),
        }
    }
}

/// The address as the kernel has it, and its length.
fn raw(address: SocketAddr) -> (libc::sockaddr_storage, libc::socklen_t) {
    // SAFETY: all-zero bytes are a valid sockaddr_storage.
    let mut storage: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let length = match address {
        SocketAddr::V4(address) => {
            let raw = libc::sockaddr_in {
                sin_family: libc::AF_INET as libc::sa_family_t,
                sin_port: address.port().to_be(),
                sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                sin_zero: [0; 8],
            };
            // SAFETY: a sockaddr_storage has room, and is aligned, for every kind of address.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in>().write(raw) };
            size_of::<libc::sockaddr_in>()
        }
        SocketAddr::V6(address) => {
            let raw = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as libc::sa_family_t,
                sin6_port: address.port().to_be(),
                sin6_flowinfo: address.flowinfo(),
                sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                sin6_scope_id: address.scope_id(),
            };
            // SAFETY: as above.
            unsafe { (&raw mut storage).cast::<libc::sockaddr_in6>().write(raw) };
            size_of::<libc::sockaddr_in6>()
        }
    };
    (storage, length as libc::socklen_t)
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
            Stream::Tcp(stream) => stream.read(buffer),
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.read(buffer),
            Stream::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            #[cfg(feature = "tls")]
            Stream::Tls(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
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
