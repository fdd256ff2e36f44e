//! Writing to sockets.

use std::io::{Error, Result};
use std::os::fd::AsRawFd;

/// Sends as much as the socket takes.
///
/// If the other end is gone, that is an error and no `SIGPIPE`, which would end a program that does not
/// ignore it. `TcpStream` raises it where several buffers are written at once, as TLS does, and `UnixStream`
/// in older versions of Rust wherever it writes.
pub(super) fn send(socket: &impl AsRawFd, bytes: &[u8]) -> Result<usize> {
    let (start, length) = (bytes.as_ptr().cast(), bytes.len());
    // SAFETY: the buffer is as long as is said.
    let sent = unsafe { libc::send(socket.as_raw_fd(), start, length, libc::MSG_NOSIGNAL) };
    usize::try_from(sent).map_err(|_| Error::last_os_error())
}
