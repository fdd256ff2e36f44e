//! Listeners over UDP.
//!
//! A waiter's listener is a socket on the address by which the waiter reaches the server. A
//! releaser sends a [`WakeMessage`] to it. Datagrams without the id of a wait in progress are
//! dropped: nothing is allocated, stored or answered because of them.
//!
//! Every waiter in the server's queue has its own socket, from a pool in the client, so that no
//! thread has to forward what another socket received. Measured on a two-core machine, a thread
//! runs 26 µs after a message to its own socket, and 40 µs after a message that another thread
//! dispatches; when all threads have slept for 10 ms, 42 and 76 µs.
//!
//! A waiter that has no entry in the queue, such as those behind the first one of a process, has no
//! descriptors: it sleeps on its [`Parker`].
//!
//! Descriptors that the program has closed are abandoned: the next waiter opens others. When the
//! client is closed, those that no waiter uses are closed at once, and the others by their waiters.

use std::fmt;
use std::net::{IpAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use self::descriptors::{Descriptors, any_like, open_socket};
use self::pool::{Pool, Slot};
use super::message::LENGTH;
use super::{Listener, Notifier, NotifySetting, Reach, ReachRecord, WakeAddress, WakeMessage};
use crate::descriptor::Descriptor;
use crate::fork::ForkLocal;
use crate::parker::Parker;
use crate::wait_id::WaitId;

mod descriptors;
mod pool;

/// How many datagrams are read in a row before the waiter does anything else.
const AT_ONCE: usize = 32;

/// The listeners of one client.
pub(crate) struct UdpNotifier {
    setting: NotifySetting,
    listeners: ForkLocal<Arc<Listeners>>,
}

/// The listeners of one process. What they consist of lives as long as the client.
#[derive(Default)]
struct Listeners {
    reach: ReachRecord,
    /// Whether a listener could not be opened.
    unreachable_since_open: AtomicBool,
    sleepers: Pool<Sleeper>,
    /// Empty slots are those whose descriptors could not be opened: the next waiter tries again.
    descriptors: Pool<OnceLock<Descriptors>>,
    /// The sockets from which messages are sent: for IPv4 and for IPv6.
    senders: [OnceLock<Mutex<Descriptor<UdpSocket>>>; 2],
    /// Whether the client was closed.
    is_closed: AtomicBool,
    /// How many threads interrupt all waiters at this moment, and so may write to any pipe.
    interrupting: AtomicUsize,
}

/// Where one waiter sleeps.
#[derive(Default)]
struct Sleeper {
    parker: Parker,
    /// The waiter's descriptors, part of the same [`Listeners`]; null if it has none.
    descriptors: AtomicPtr<Slot<OnceLock<Descriptors>>>,
}

impl UdpNotifier {
    pub(crate) fn new(setting: NotifySetting) -> UdpNotifier {
        UdpNotifier { setting, listeners: ForkLocal::new() }
    }
}

impl Notifier for UdpNotifier {
    fn take(&self) -> Arc<dyn Listener> {
        let listeners = Arc::clone(self.listeners.get());
        let sleeper: *const Slot<Sleeper> = listeners.sleepers.take(|_| true);
        Arc::new(UdpListener { setting: self.setting, listeners, sleeper })
    }

    /// False if this host reports that the listener is gone.
    fn send(&self, address: WakeAddress, id: WaitId, message: WakeMessage) -> bool {
        let address = address.socket();
        let sender = &self.listeners.get().senders[usize::from(address.is_ipv6())];
        let open = || open_socket(any_like(address.ip()), 0);
        let sent = get_or_open(sender, || open().map(Mutex::new)).and_then(|udp| {
            let mut udp = udp.lock().unwrap_or_else(PoisonError::into_inner);
            if !udp.is_ours() {
                *udp = open()?;
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
        self.listeners.get().reach.reach()
    }

    fn missed(&self) {
        let first = self.listeners.get().reach.missed();
        log::log!(
            if first { log::Level::Info } else { log::Level::Debug },
            "A wake-up message did not reach this process in time. Where UDP is blocked, its \
             waiters ask the server when their turn should have come."
        );
    }

    fn may_have_missed(&self) {
        if self.listeners.get().reach.may_have_missed() {
            self.missed();
        }
    }

    /// Wakes all sleeping waiters. It uses atomics, wakes futexes and writes to descriptors, so a
    /// signal handler may call it.
    fn interrupt_all(&self) {
        let Some(listeners) = self.listeners.existing() else { return };
        listeners.interrupting.fetch_add(1, Ordering::SeqCst);
        // Waiters of a closed client were interrupted, and sleep no more.
        if !listeners.is_closed.load(Ordering::SeqCst) {
            let taken = listeners.sleepers.slots().filter(|sleeper| sleeper.is_taken());
            taken.for_each(|sleeper| sleeper.interrupt());
        }
        listeners.interrupting.fetch_sub(1, Ordering::SeqCst);
    }

    fn close(&self) {
        let Some(listeners) = self.listeners.existing() else { return };
        listeners.is_closed.store(true, Ordering::SeqCst);
        listeners.descriptors.slots().for_each(|slot| listeners.close_unused(slot));
        for sender in listeners.senders.iter().filter_map(OnceLock::get) {
            sender.lock().unwrap_or_else(PoisonError::into_inner).close();
        }
    }
}

impl Listeners {
    /// If the client was closed, closes descriptors that no waiter uses, for good: their slot stays
    /// taken. In the rare case that a thread interrupts all waiters at this moment, they are closed
    /// with the client.
    fn close_unused(&self, slot: &Slot<OnceLock<Descriptors>>) {
        if self.is_closed.load(Ordering::SeqCst)
            && self.interrupting.load(Ordering::SeqCst) == 0
            && slot.try_take()
            && let Some(descriptors) = slot.get()
        {
            descriptors.close();
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
    listeners: Arc<Listeners>,
    sleeper: *const Slot<Sleeper>,
}

// SAFETY: the sleeper is part of `listeners`, which this value keeps alive, in a list that only
// grows; all its fields may be used from any thread.
unsafe impl Send for UdpListener {}
// SAFETY: as above.
unsafe impl Sync for UdpListener {}

impl UdpListener {
    fn sleeper(&self) -> &Slot<Sleeper> {
        // SAFETY: see above.
        unsafe { &*self.sleeper }
    }

    /// Takes descriptors that listen on this address. The program has not closed them.
    fn take_descriptors(
        &self,
        advertised: IpAddr,
        ports: (u16, u16),
        test: WaitId,
    ) -> std::io::Result<&Descriptors> {
        let is_fit = |descriptors: &Descriptors| descriptors.address.socket().ip() == advertised;
        let slot = loop {
            let slot = self.listeners.descriptors.take(|slot| slot.get().is_none_or(is_fit));
            // Those that the program has closed remain taken.
            if slot.get().is_none_or(Descriptors::are_ours) {
                break slot;
            }
        };
        let behind = matches!(self.setting, NotifySetting::At(..));
        let opened = get_or_open(slot, || Descriptors::open(advertised, ports, behind, test));
        match opened {
            Ok(_) => {
                let slot = std::ptr::from_ref(slot).cast_mut();
                self.sleeper().descriptors.store(slot, Ordering::SeqCst);
            }
            Err(_) => self.listeners.descriptors.give_back(slot),
        }
        opened
    }
}

impl Listener for UdpListener {
    fn address(&self, near: Option<IpAddr>, test: WaitId) -> Option<WakeAddress> {
        if let Some(descriptors) = self.sleeper().usable() {
            return Some(descriptors.address);
        }
        let (advertised, ports) = match self.setting {
            NotifySetting::Off => return None,
            NotifySetting::At(address, ports) => (address, ports.unwrap_or((0, 0))),
            NotifySetting::Near => (near?.to_canonical(), (0, 0)),
        };
        // A link-local address means nothing to another host.
        if matches!(advertised, IpAddr::V6(ip) if ip.is_unicast_link_local()) {
            return None;
        }
        let unopened = |error| {
            // Logged as a warning only once: no waiter of this process will have a listener.
            let known = self.listeners.unreachable_since_open.swap(true, Ordering::Relaxed);
            log::log!(
                if known { log::Level::Debug } else { log::Level::Warn },
                "No listener can be opened on {advertised} ({error}): this waiter asks the server \
                 now and then."
            );
        };
        let taken = self.take_descriptors(advertised, ports, test);
        taken.map(|descriptors| descriptors.address).map_err(unopened).ok()
    }

    fn sleep(&self, duration: Duration) {
        let sleeper = self.sleeper();
        match sleeper.usable() {
            Some(descriptors) => sleeper.parker.poll(|| descriptors.sleep(duration)),
            None => sleeper.parker.park(duration),
        }
    }

    fn heard(&self, live: &[WaitId]) -> Option<WakeMessage> {
        let descriptors = self.sleeper().descriptors()?;
        let udp = Some(&descriptors.udp).filter(|udp| udp.is_ours())?;
        // One byte more than a message has, to recognize longer datagrams.
        let mut datagram = [0; LENGTH + 1];
        for _ in 0..AT_ONCE {
            let (length, _) = udp.recv_from(&mut datagram).ok()?;
            let Some((id, message)) = WakeMessage::read(&datagram[..length]) else { continue };
            if id == descriptors.test {
                self.listeners.reach.heard_itself();
            }
            if live.contains(&id) {
                self.listeners.reach.heard();
                return Some(message);
            }
        }
        None
    }

    fn interrupt(&self) {
        self.sleeper().interrupt();
    }
}

impl Drop for UdpListener {
    fn drop(&mut self) {
        let sleeper = self.sleeper();
        if let Some(slot) = sleeper.slot() {
            sleeper.descriptors.store(std::ptr::null_mut(), Ordering::SeqCst);
            self.listeners.descriptors.give_back(slot);
            self.listeners.close_unused(slot);
        }
        self.listeners.sleepers.give_back(sleeper);
    }
}

impl Sleeper {
    fn slot(&self) -> Option<&Slot<OnceLock<Descriptors>>> {
        // SAFETY: the slot is part of the same `Listeners` as this value, in a list that only grows.
        unsafe { self.descriptors.load(Ordering::SeqCst).as_ref() }
    }

    fn descriptors(&self) -> Option<&Descriptors> {
        self.slot()?.get()
    }

    /// The descriptors, unless the program has closed any of them.
    fn usable(&self) -> Option<&Descriptors> {
        self.descriptors().filter(|descriptors| descriptors.are_ours())
    }

    fn interrupt(&self) {
        // SAFETY: errno is restored, as a signal handler must.
        unsafe {
            let errno = libc::__errno_location();
            let before = *errno;
            if self.parker.unpark()
                && let Some(descriptors) = self.descriptors()
            {
                descriptors.pipe.fill();
            }
            *errno = before;
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

#[cfg(test)]
mod tests;
