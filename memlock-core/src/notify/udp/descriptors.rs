//! The descriptors of a listener: the socket that receives messages, and a pipe by which threads of
//! the same process wake a waiter that sleeps on that socket.
//!
//! The program may have closed them, and opened files of its own with their numbers. They are
//! compared before each use.

use std::io::{Error, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use crate::descriptor::{Descriptor, occupy_standard_streams};
use crate::notify::{WakeAddress, WakeMessage};
use crate::wait_id::WaitId;

pub(super) struct Descriptors {
    pub(super) udp: Descriptor<UdpSocket>,
    /// The address in the queue entry.
    pub(super) address: WakeAddress,
    /// The id of the message that the socket once sent to itself, to test whether it receives any.
    pub(super) test: WaitId,
    pub(super) pipe: Pipe,
}

/// An `eventfd` could not be told from one of the program: see
/// [`Inode`](crate::descriptor::Inode).
pub(super) struct Pipe {
    pub(super) reader: Descriptor<OwnedFd>,
    pub(super) writer: Descriptor<OwnedFd>,
}

impl Descriptors {
    /// Opens a socket on one of these ports of `advertised`; or, `behind` a translated address, on
    /// all addresses of this host.
    pub(super) fn open(
        advertised: IpAddr,
        ports: (u16, u16),
        behind: bool,
        test: WaitId,
    ) -> Result<Descriptors> {
        let udp = match open_one_of(advertised, ports) {
            Err(_) if behind => open_one_of(any_like(advertised), ports),
            opened => opened,
        }?;
        let address = SocketAddr::new(advertised, udp.local_addr()?.port());
        // Without this, the first waiter would not know whether it is reachable.
        let _ = udp.send_to(&WakeMessage::default().datagram(test), address);
        let address = WakeAddress::udp(address)
            .ok_or_else(|| Error::other("it is no address of one host"))?;
        Ok(Descriptors { udp, address, test, pipe: Pipe::open()? })
    }

    /// Whether the program has closed none of them.
    pub(super) fn are_ours(&self) -> bool {
        self.pipe.is_ours() && self.udp.is_ours()
    }

    /// Sleeps for this long, or until the socket or the pipe is readable.
    pub(super) fn sleep(&self, duration: Duration) {
        let watch = |fd: RawFd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut watched = [watch(self.pipe.reader.as_raw_fd()), watch(self.udp.as_raw_fd())];
        let limit = libc::timespec {
            tv_sec: duration.as_secs().min(i32::MAX as u64) as libc::time_t,
            tv_nsec: duration.subsec_nanos() as _,
        };
        // SAFETY: two valid pollfds and a valid timespec are given, and the signal mask is not
        // changed.
        let ready = unsafe { libc::ppoll(watched.as_mut_ptr(), 2, &limit, std::ptr::null()) };
        if watched[0].revents != 0 && ready > 0 {
            self.pipe.drain();
        }
    }

    pub(super) fn close(&self) {
        self.udp.close();
        self.pipe.reader.close();
        self.pipe.writer.close();
    }
}

impl Pipe {
    fn open() -> Result<Pipe> {
        occupy_standard_streams();
        let mut ends = [-1; 2];
        // SAFETY: two descriptors are written, which nothing else owns.
        let [reader, writer] = unsafe {
            if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) != 0 {
                return Err(Error::last_os_error());
            }
            ends.map(|end| OwnedFd::from_raw_fd(end))
        };
        Ok(Pipe { reader: Descriptor::new(reader)?, writer: Descriptor::new(writer)? })
    }

    fn is_ours(&self) -> bool {
        self.reader.is_ours() && self.writer.is_ours()
    }

    /// Makes the pipe readable. If it is full, it is readable already. Without a reader, SIGPIPE
    /// would be raised. A signal handler may call this; it changes `errno`.
    pub(super) fn fill(&self) {
        if self.is_ours() {
            // SAFETY: one byte is given.
            unsafe { libc::write(self.writer.as_raw_fd(), b"!".as_ptr().cast(), 1) };
        }
    }

    fn drain(&self) {
        let mut bytes = [0_u8; 64];
        if self.reader.is_ours() {
            // SAFETY: the buffer is as long as is said.
            unsafe {
                libc::read(self.reader.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len());
            }
        }
    }
}

/// The address that stands for all addresses of this host.
pub(super) fn any_like(address: IpAddr) -> IpAddr {
    if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

fn open_one_of(address: IpAddr, (first, last): (u16, u16)) -> Result<Descriptor<UdpSocket>> {
    let mut opened = open_socket(address, first);
    for port in first.saturating_add(1)..=last {
        opened = opened.or_else(|_| open_socket(address, port));
    }
    opened
}

pub(super) fn open_socket(address: IpAddr, port: u16) -> Result<Descriptor<UdpSocket>> {
    occupy_standard_streams();
    let udp = UdpSocket::bind((address, port))?;
    udp.set_nonblocking(true)?;
    Descriptor::new(udp)
}
