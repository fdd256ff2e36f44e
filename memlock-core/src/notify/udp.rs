//! Listeners over UDP.
//!
//! A waiter's listener is a socket on the address by which the waiter reaches the server. A
//! releaser sends a [`WakeMessage`] to it. Datagrams without the id of a wait in progress are
//! dropped: nothing is allocated, stored or answered because of them.
//!
//! Every waiting thread has its own listener, from a pool in the client, so that no thread has to
//! forward what another socket received. Measured on a two-core machine, a thread runs 26 µs after
//! a message to its own socket, and 40 µs after a message that another thread dispatches; when all
//! threads have slept for 10 ms, 42 and 76 µs. Beside the socket, a listener has a pipe, by which
//! threads of the same process wake the waiter.
//!
//! The program may have closed these descriptors, and opened files of its own with their numbers.
//! They are compared before each use, and abandoned: the next waiter opens others. When the client is
//! closed, those of listeners that no waiter uses are closed at once, and the others by their waiters.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::message::LENGTH;
use super::{Listener, Notifier, NotifySetting, Reach, ReachRecord, WakeAddress, WakeMessage};
use crate::clock::{Clock, SystemClock};
use crate::descriptor::{Descriptor, occupy_standard_streams};
use crate::fork::ForkLocal;
use crate::wait_id::WaitId;

/// How many datagrams are read in a row before the waiter does anything else.
const AT_ONCE: usize = 32;
/// The longest sleep of a waiter that has no pipe.
const BLIND: Duration = Duration::from_millis(20);

/// The listeners of one client.
pub(crate) struct UdpNotifier {
    setting: NotifySetting,
    pool: ForkLocal<Arc<ListenerPool>>,
}

/// The listeners of one process. They are created one by one and live as long as the client, in a
/// list that only grows, so that a signal handler may traverse it.
#[derive(Default)]
struct ListenerPool {
    reach: ReachRecord,
    /// Whether a listener could not be opened.
    unreachable_since_open: AtomicBool,
    first: OnceLock<Box<Link>>,
    /// The sockets from which messages are sent: for IPv4 and for IPv6.
    senders: [OnceLock<Mutex<Descriptor<UdpSocket>>>; 2],
    /// Whether the client was closed.
    is_closed: AtomicBool,
    /// How many threads interrupt all waiters at this moment, and so may write to any listener.
    interrupting: AtomicUsize,
}

struct Link {
    slot: Slot,
    next: OnceLock<Box<Link>>,
}

/// The descriptors of a listener.
#[derive(Default)]
struct Slot {
    taken: AtomicBool,
    /// `None` if no descriptor was left; it is then opened the next time. The same holds for
    /// `socket`.
    interrupt: OnceLock<Pipe>,
    socket: OnceLock<Socket>,
}

/// Wakes the waiter, who drains it. An `eventfd` could not be told from one of the program: see
/// [`Inode`](crate::descriptor::Inode).
struct Pipe {
    reader: Descriptor<OwnedFd>,
    writer: Descriptor<OwnedFd>,
}

struct Socket {
    udp: Descriptor<UdpSocket>,
    /// The address in the queue entry.
    address: WakeAddress,
    near: Option<IpAddr>,
    /// The id of the message that the socket once sent to itself, to test whether it receives any.
    test: WaitId,
}

impl UdpNotifier {
    pub(crate) fn new(setting: NotifySetting) -> UdpNotifier {
        UdpNotifier { setting, pool: ForkLocal::new() }
    }
}

impl Notifier for UdpNotifier {
    fn take(&self, near: Option<IpAddr>) -> Arc<dyn Listener> {
        let pool = Arc::clone(self.pool.get());
        let mut next = &pool.first;
        let slot: *const Slot = loop {
            let link = next
                .get_or_init(|| Box::new(Link { slot: Slot::default(), next: OnceLock::new() }));
            let fits = link.slot.socket.get().is_none_or(|socket| socket.near == near);
            // One that the program has closed remains taken.
            if fits && !link.slot.taken.swap(true, Ordering::SeqCst) && link.slot.is_ours() {
                link.slot.prepare();
                break &raw const link.slot;
            }
            next = &link.next;
        };
        Arc::new(UdpListener { setting: self.setting, near, pool, slot })
    }

    /// False if this host reports that the listener is gone.
    fn send(&self, address: WakeAddress, id: WaitId, message: WakeMessage) -> bool {
        let address = address.socket();
        let pool = self.pool.get();
        let sender = &pool.senders[usize::from(address.is_ipv6())];
        let sent = get_or_open(sender, || open(any_like(address.ip()), 0).map(Mutex::new))
            .and_then(|udp| {
                let mut udp = udp.lock().unwrap_or_else(PoisonError::into_inner);
                if !udp.is_ours() {
                    *udp = open(any_like(address.ip()), 0)?;
                }
                // Only a connected socket receives the ICMP error. By now it may have received the
                // error of an earlier message.
                udp.connect(address)?;
                let _ = udp.take_error();
                udp.send(&message.datagram(id))?;
                udp.take_error()
            });
        match sent {
            Ok(None) => true,
            Ok(Some(error)) | Err(error) => {
                log::debug!("The waiter at {address} cannot be woken: {error}.");
                error.kind() != std::io::ErrorKind::ConnectionRefused
            }
        }
    }

    fn reach(&self) -> Reach {
        self.pool.get().reach.reach()
    }

    fn missed(&self) {
        let first = self.pool.get().reach.missed();
        log::log!(
            if first { log::Level::Info } else { log::Level::Debug },
            "A wake-up message did not reach this process in time. Where UDP is blocked, its \
             waiters ask the server when their turn should have come."
        );
    }

    fn may_have_missed(&self) {
        if self.pool.get().reach.may_have_missed() {
            self.missed();
        }
    }

    /// Wakes all sleeping waiters. It reads atomics and writes to descriptors, so a signal handler
    /// may call it.
    fn interrupt_all(&self) {
        let Some(pool) = self.pool.existing() else { return };
        pool.interrupting.fetch_add(1, Ordering::SeqCst);
        // Waiters of a closed client were interrupted, and sleep no more.
        if !pool.is_closed.load(Ordering::SeqCst) {
            let taken = pool.slots().filter(|slot| slot.taken.load(Ordering::SeqCst));
            taken.for_each(Slot::interrupt);
        }
        pool.interrupting.fetch_sub(1, Ordering::SeqCst);
    }

    fn close(&self) {
        let Some(pool) = self.pool.existing() else { return };
        pool.is_closed.store(true, Ordering::SeqCst);
        pool.slots().for_each(|slot| pool.close_unused(slot));
        for sender in pool.senders.iter().filter_map(OnceLock::get) {
            sender.lock().unwrap_or_else(PoisonError::into_inner).close();
        }
    }
}

impl ListenerPool {
    fn slots(&self) -> impl Iterator<Item = &Slot> {
        let links = std::iter::successors(self.first.get(), |link| link.next.get());
        links.map(|link| &link.slot)
    }

    /// If the client was closed, closes the descriptors of a slot that no waiter uses. In the rare case
    /// that a thread interrupts all waiters at this moment, they are closed with the pool.
    fn close_unused(&self, slot: &Slot) {
        if self.is_closed.load(Ordering::SeqCst)
            && self.interrupting.load(Ordering::SeqCst) == 0
            && !slot.taken.swap(true, Ordering::SeqCst)
        {
            slot.close();
        }
    }
}

impl fmt::Debug for UdpNotifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UdpNotifier").field("setting", &self.setting).finish_non_exhaustive()
    }
}

/// A listener in use by one waiter.
struct UdpListener {
    setting: NotifySetting,
    near: Option<IpAddr>,
    pool: Arc<ListenerPool>,
    slot: *const Slot,
}

// SAFETY: the slot is part of the pool, which this value keeps alive, in a list that only grows;
// all its fields may be used from any thread.
unsafe impl Send for UdpListener {}
// SAFETY: as above.
unsafe impl Sync for UdpListener {}

impl UdpListener {
    fn slot(&self) -> &Slot {
        // SAFETY: see above.
        unsafe { &*self.slot }
    }
}

impl Listener for UdpListener {
    /// Opens the socket the first time.
    fn address(&self, near: Option<IpAddr>, test: WaitId) -> Option<WakeAddress> {
        let near = self.near.or(near);
        let (advertised, ports) = match self.setting {
            NotifySetting::Off => return None,
            NotifySetting::At(address, ports) => (address, ports.unwrap_or((0, 0))),
            NotifySetting::Near => (near?.to_canonical(), (0, 0)),
        };
        // A link-local address means nothing to another host.
        if matches!(advertised, IpAddr::V6(ip) if ip.is_unicast_link_local()) {
            return None;
        }
        let socket = get_or_open(&self.slot().socket, || {
            let udp = match (open_one_of(advertised, ports), self.setting) {
                // Behind a translated address, listen on all addresses of this host.
                (Err(_), NotifySetting::At(..)) => open_one_of(any_like(advertised), ports),
                (opened, _) => opened,
            }?;
            let address = SocketAddr::new(advertised, udp.local_addr()?.port());
            // Without this, the first waiter would not know whether it is reachable.
            let _ = udp.send_to(&WakeMessage::default().datagram(test), address);
            let address = WakeAddress::udp(address)
                .ok_or_else(|| std::io::Error::other("it is no address of one host"))?;
            Ok(Socket { udp, address, near, test })
        });
        let unopened = |error| {
            // Logged as a warning only once: no waiter of this process will have a listener.
            let known = self.pool.unreachable_since_open.swap(true, Ordering::Relaxed);
            log::log!(
                if known { log::Level::Debug } else { log::Level::Warn },
                "No listener can be opened on {advertised} ({error}): this waiter asks the server \
                 now and then."
            );
        };
        socket.map(|socket| socket.address).map_err(unopened).ok()
    }

    fn sleep(&self, duration: Duration) {
        let slot = self.slot();
        let socket = slot.socket.get();
        let interrupt = match slot.interrupt.get() {
            Some(interrupt) if slot.is_ours() => interrupt,
            _ => return SystemClock.sleep(duration.min(BLIND)),
        };
        let watch = |fd: RawFd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut watched = [
            watch(interrupt.reader.as_raw_fd()),
            watch(socket.map_or(-1, |socket| socket.udp.as_raw_fd())),
        ];
        let limit = libc::timespec {
            tv_sec: duration.as_secs().min(i32::MAX as u64) as libc::time_t,
            tv_nsec: duration.subsec_nanos() as _,
        };
        // SAFETY: two valid pollfds and a valid timespec are given, and the signal mask is not
        // changed. A negative descriptor is ignored.
        let ready = unsafe { libc::ppoll(watched.as_mut_ptr(), 2, &limit, std::ptr::null()) };
        if watched[0].revents != 0 && ready > 0 {
            interrupt.drain();
        }
    }

    fn heard(&self, live: &[WaitId]) -> Option<WakeMessage> {
        let socket = self.slot().socket.get().filter(|socket| socket.udp.is_ours())?;
        // One byte more than a message has, to recognize longer datagrams.
        let mut datagram = [0; LENGTH + 1];
        for _ in 0..AT_ONCE {
            let (length, _) = socket.udp.recv_from(&mut datagram).ok()?;
            let Some((id, message)) = WakeMessage::read(&datagram[..length]) else { continue };
            if id == socket.test {
                self.pool.reach.heard_itself();
            }
            if live.contains(&id) {
                self.pool.reach.heard();
                return Some(message);
            }
        }
        None
    }

    fn interrupt(&self) {
        self.slot().interrupt();
    }
}

impl Drop for UdpListener {
    fn drop(&mut self) {
        self.slot().taken.store(false, Ordering::SeqCst);
        self.pool.close_unused(self.slot());
    }
}

impl Slot {
    fn prepare(&self) {
        if let Err(error) = get_or_open(&self.interrupt, Pipe::open) {
            log::warn!("A waiter looks up every {BLIND:?}, since it cannot be woken: {error}.");
        }
    }

    /// Whether the program has closed none of its descriptors.
    fn is_ours(&self) -> bool {
        self.interrupt.get().is_none_or(Pipe::is_ours)
            && self.socket.get().is_none_or(|socket| socket.udp.is_ours())
    }

    /// For good: the slot stays taken.
    fn close(&self) {
        if let Some(pipe) = self.interrupt.get() {
            pipe.reader.close();
            pipe.writer.close();
        }
        if let Some(socket) = self.socket.get() {
            socket.udp.close();
        }
    }

    fn interrupt(&self) {
        let Some(pipe) = self.interrupt.get() else { return };
        // SAFETY: errno is restored, as a signal handler must.
        unsafe {
            let errno = libc::__errno_location();
            let before = *errno;
            pipe.fill();
            *errno = before;
        }
    }
}

impl Pipe {
    fn open() -> std::io::Result<Pipe> {
        occupy_standard_streams();
        let mut ends = [-1; 2];
        // SAFETY: two descriptors are written, which nothing else owns.
        let [reader, writer] = unsafe {
            if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            ends.map(|end| OwnedFd::from_raw_fd(end))
        };
        Ok(Pipe { reader: Descriptor::new(reader)?, writer: Descriptor::new(writer)? })
    }

    fn is_ours(&self) -> bool {
        self.reader.is_ours() && self.writer.is_ours()
    }

    /// Fails where the waiter is about to be woken anyway: if the pipe is full. Without a reader,
    /// SIGPIPE would be raised.
    fn fill(&self) {
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

/// The open descriptor, or a newly opened one. A failure is not remembered: descriptors that are
/// lacking now may be available later.
fn get_or_open<T>(
    place: &OnceLock<T>,
    open: impl FnOnce() -> std::io::Result<T>,
) -> std::io::Result<&T> {
    match place.get() {
        Some(there) => Ok(there),
        None => {
            let opened = open()?;
            Ok(place.get_or_init(|| opened))
        }
    }
}

fn any_like(address: IpAddr) -> IpAddr {
    if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

fn open_one_of(
    address: IpAddr,
    (first, last): (u16, u16),
) -> std::io::Result<Descriptor<UdpSocket>> {
    let mut opened = open(address, first);
    for port in first.saturating_add(1)..=last {
        opened = opened.or_else(|_| open(address, port));
    }
    opened
}

fn open(address: IpAddr, port: u16) -> std::io::Result<Descriptor<UdpSocket>> {
    occupy_standard_streams();
    let udp = UdpSocket::bind((address, port))?;
    udp.set_nonblocking(true)?;
    Descriptor::new(udp)
}

#[cfg(test)]
mod tests;
