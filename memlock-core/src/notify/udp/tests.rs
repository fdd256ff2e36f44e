use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Instant;

use super::*;

const NEAR: Option<IpAddr> = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));

#[test]
#[cfg_attr(miri, ignore = "Miri has no UDP")]
fn a_listener_hears_itself_and_what_is_meant_for_it() {
    let notifier = UdpNotifier::new(NotifySetting::Near);
    let listener = notifier.take();
    let address = listener.address(NEAR, WaitId(1)).unwrap();
    let long = Duration::from_secs(20);
    while notifier.reach() != Reach::Untested {
        listener.sleep(long);
        assert_eq!(listener.heard(&[WaitId(2)]), None, "that was no wake-up of it");
    }
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    for noise in
        [&b"GET / HTTP/1.0\r\n"[..], &[0; 1400], b"", &WakeMessage::default().datagram(WaitId(3))]
    {
        stranger.send_to(noise, address.socket()).unwrap();
    }
    let message = WakeMessage {
        after: Duration::from_micros(5),
        successors: [(address, WaitId(9))].into_iter().collect(),
    };
    notifier.send(address, WaitId(2), message);
    let heard = loop {
        listener.sleep(long);
        if let Some(heard) = listener.heard(&[WaitId(2)]) {
            break heard;
        }
    };
    assert_eq!(heard, message);
    let began = Instant::now();
    notifier.interrupt_all();
    listener.sleep(long);
    assert!(began.elapsed() < long);
    let began = Instant::now();
    listener.sleep(Duration::from_millis(1));
    assert!(began.elapsed() >= Duration::from_millis(1));
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no UDP")]
fn a_listener_that_was_given_back_is_taken_again_where_it_fits() {
    let notifier = UdpNotifier::new(NotifySetting::Near);
    let six = Some(Ipv6Addr::LOCALHOST.into());
    let first = notifier.take();
    let address = first.address(NEAR, WaitId(1));
    assert!(
        address.is_some() && notifier.take().address(NEAR, WaitId(2)) != address,
        "that one is taken"
    );
    assert_eq!(first.address(six, WaitId(8)), address, "where it was woken before");
    drop(first);
    assert_eq!(notifier.take().address(NEAR, WaitId(3)), address);
    assert_ne!(notifier.take().address(six, WaitId(4)), address);
    let early = notifier.take();
    assert_eq!(early.address(None, WaitId(6)), None);
    assert!(early.address(NEAR, WaitId(7)).is_some(), "the server was reached meanwhile");
    assert_eq!(notifier.listeners.get().sleepers.slots().count(), 2, "there were two at a time");
    assert_eq!(UdpNotifier::new(NotifySetting::Off).take().address(NEAR, WaitId(5)), None);
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no UDP")]
fn a_listener_that_could_not_be_opened_is_opened_by_the_next_waiter() {
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let setting = NotifySetting::At(Ipv4Addr::LOCALHOST.into(), Some((port, port)));
    let notifier = UdpNotifier::new(setting);
    let listener = notifier.take();
    for id in 1..3 {
        assert_eq!(listener.address(NEAR, WaitId(id)), None);
    }
    listener.interrupt();
    listener.sleep(Duration::from_secs(20));
    drop(taken);
    let address = notifier.take().address(NEAR, WaitId(3)).unwrap();
    assert_eq!(address.socket().port(), port);
    assert_eq!(notifier.listeners.get().descriptors.slots().count(), 1);
}

#[test]
fn listeners_are_taken_interrupted_and_given_back_by_threads_at_the_same_time() {
    let notifier = UdpNotifier::new(NotifySetting::Off);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..3 {
                    let (one, two) = (notifier.take(), notifier.take());
                    one.interrupt();
                    drop(one);
                    two.interrupt();
                }
            });
        }
        scope.spawn(|| (0..3).for_each(|_| notifier.interrupt_all()));
    });
    // A listener in use outlives its client.
    let last = notifier.take();
    drop(notifier);
    last.interrupt();
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no UDP")]
fn listeners_of_a_closed_client_are_closed_as_soon_as_no_waiter_uses_them() {
    let notifier = UdpNotifier::new(NotifySetting::Near);
    let [used, unused] = [1, 2].map(|id| {
        let listener = notifier.take();
        (listener.address(NEAR, WaitId(id)).unwrap(), listener)
    });
    notifier.send(unused.0, WaitId(2), WakeMessage::default());
    drop(unused);
    let listeners = Arc::clone(notifier.listeners.get());
    let open = || opened(&listeners).filter(|descriptors| descriptors.are_ours()).count();
    let sender_is_open = || listeners.senders[0].get().unwrap().lock().unwrap().is_ours();
    assert_eq!((open(), sender_is_open()), (2, true));
    notifier.interrupt_all();
    notifier.close();
    assert_eq!((open(), sender_is_open()), (1, false));
    // The waiter is woken, and can still be.
    let began = Instant::now();
    let long = Duration::from_secs(20);
    used.1.sleep(long);
    used.1.interrupt();
    used.1.sleep(long);
    assert!(began.elapsed() < long);
    drop(used);
    assert_eq!(open(), 0);
    // A waiter that had begun before, and one that releases a lock that is still held.
    let late = notifier.take();
    let address = late.address(NEAR, WaitId(3)).unwrap();
    notifier.send(address, WaitId(3), WakeMessage::default());
    assert_eq!((open(), sender_is_open()), (1, true));
    drop(late);
    notifier.interrupt_all();
    assert_eq!(open(), 0);
}

/// All descriptors of this process's listeners.
fn opened(listeners: &Listeners) -> impl Iterator<Item = &Descriptors> {
    listeners.descriptors.slots().filter_map(|slot| slot.get())
}

/// The first waiter is interrupted once it sleeps.
fn is_interrupted(notifier: &UdpNotifier, listener: &dyn Listener) {
    let (began, long) = (Instant::now(), Duration::from_secs(20));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            notifier.listeners.get().sleepers.slots().next().unwrap().parker.until_asleep();
            notifier.interrupt_all();
        });
        listener.sleep(long);
    });
    assert!(began.elapsed() < long, "it was not interrupted");
}

/// Waiters behind the first one of their process are such.
#[test]
fn a_waiter_that_no_other_process_can_wake_has_no_descriptors() {
    for setting in [NotifySetting::Near, NotifySetting::Off] {
        let notifier = UdpNotifier::new(setting);
        let listener = notifier.take();
        is_interrupted(&notifier, &*listener);
        let long = Duration::from_secs(20);
        let began = Instant::now();
        listener.interrupt();
        listener.sleep(long);
        assert!(began.elapsed() < long);
        assert_eq!(listener.heard(&[WaitId(1)]), None);
        assert_eq!(opened(notifier.listeners.get()).count(), 0);
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no UDP")]
fn a_waiter_that_sleeps_on_its_descriptors_is_interrupted() {
    let notifier = UdpNotifier::new(NotifySetting::Near);
    let listener = notifier.take();
    listener.address(NEAR, WaitId(1)).unwrap();
    let long = Duration::from_secs(20);
    // The message to itself ends a sleep.
    while notifier.reach() != Reach::Untested {
        listener.sleep(long);
        listener.heard(&[]);
    }
    for _ in 0..3 {
        is_interrupted(&notifier, &*listener);
    }
    let began = Instant::now();
    listener.sleep(Duration::from_millis(1));
    assert!(began.elapsed() >= Duration::from_millis(1), "its pipe is empty again");
}

/// Closes a descriptor, and gives its number to a file of the program.
fn replace(number: RawFd, file: &impl AsRawFd) -> OwnedFd {
    // SAFETY: the number is that file's from now on, which nothing else closes.
    unsafe {
        assert_eq!(libc::dup2(file.as_raw_fd(), number), number);
        OwnedFd::from_raw_fd(number)
    }
}

/// Although the writer is still there.
#[test]
#[cfg_attr(miri, ignore = "Miri has no UDP")]
fn a_waiter_whose_pipe_has_no_reader_any_more_raises_no_sigpipe() {
    let notifier = UdpNotifier::new(NotifySetting::Near);
    let listener = notifier.take();
    listener.address(NEAR, WaitId(1)).unwrap();
    let listeners = Arc::clone(notifier.listeners.get());
    let pipe = &opened(&listeners).next().unwrap().pipe;
    let its_own = replace(pipe.reader.as_raw_fd(), &UdpSocket::bind("127.0.0.1:0").unwrap());
    // SAFETY: sets of signals are plain data. A signal that is blocked stays pending, although this
    // process ignores it.
    unsafe {
        let (mut signals, mut pending): (libc::sigset_t, libc::sigset_t) =
            (std::mem::zeroed(), std::mem::zeroed());
        libc::sigaddset(&raw mut signals, libc::SIGPIPE);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const signals, std::ptr::null_mut());
        let sleeper = listeners.sleepers.slots().next().unwrap();
        let mut polls = false;
        sleeper.parker.poll(|| {
            polls = true;
            notifier.interrupt_all();
        });
        assert!(polls);
        libc::sigpending(&raw mut pending);
        assert_eq!(libc::sigismember(&raw const pending, libc::SIGPIPE), 0);
    }
    drop((listener, its_own));
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no UDP")]
fn what_the_program_opens_in_the_place_of_a_listener_is_left_alone() {
    use std::io::{Read, Write};

    let notifier = UdpNotifier::new(NotifySetting::Near);
    let listener = notifier.take();
    let address = listener.address(NEAR, WaitId(1)).unwrap();
    notifier.send(address, WaitId(2), WakeMessage::default());

    let (mut program, its_pipe) = std::os::unix::net::UnixStream::pair().unwrap();
    let its_socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    its_socket.set_nonblocking(true).unwrap();
    let its_address = its_socket.local_addr().unwrap();
    its_socket.send_to(&WakeMessage::default().datagram(WaitId(2)), its_address).unwrap();
    program.write_all(b"it").unwrap();

    let listeners = Arc::clone(notifier.listeners.get());
    let Descriptors { udp, pipe, .. } = opened(&listeners).next().unwrap();
    let sender = listeners.senders[0].get().unwrap().lock().unwrap().as_raw_fd();
    let its_own = [
        replace(pipe.reader.as_raw_fd(), &its_pipe),
        replace(pipe.writer.as_raw_fd(), &its_pipe),
        replace(udp.as_raw_fd(), &its_socket),
        replace(sender, &its_socket),
    ];
    listeners.sleepers.slots().next().unwrap().parker.poll(|| notifier.interrupt_all());
    is_interrupted(&notifier, &*listener);
    assert_eq!(listener.heard(&[WaitId(2)]), None);

    // The waiter opens others when it joins the queue again, and so does the next waiter.
    let again = listener.address(NEAR, WaitId(4)).unwrap();
    assert_ne!(again, address);
    opened(&listeners).last().unwrap().close();
    drop(listener);
    let listener = notifier.take();
    let address = listener.address(NEAR, WaitId(1)).unwrap();
    assert_ne!(address, again);
    assert!(notifier.send(address, WaitId(3), WakeMessage::default()));
    let heard = loop {
        listener.sleep(Duration::from_secs(20));
        if let Some(heard) = listener.heard(&[WaitId(3)]) {
            break heard;
        }
    };
    assert_eq!(heard, WakeMessage::default());
    drop((listener, listeners, notifier));

    // Their numbers are open, and nothing was read, written or connected.
    drop(its_own);
    its_socket.peer_addr().unwrap_err();
    let mut datagram = [0; 1500];
    let (length, from) = its_socket.recv_from(&mut datagram).unwrap();
    assert_eq!(
        (&datagram[..length], from),
        (&WakeMessage::default().datagram(WaitId(2))[..], its_address)
    );
    assert_eq!(
        its_socket.recv_from(&mut datagram).unwrap_err().kind(),
        std::io::ErrorKind::WouldBlock
    );
    let (mut its_pipe, mut left) = (its_pipe, Vec::new());
    its_pipe.shutdown(std::net::Shutdown::Write).unwrap();
    program.read_to_end(&mut left).unwrap();
    assert_eq!(left, b"", "nothing was written");
    drop(program);
    its_pipe.read_to_end(&mut left).unwrap();
    assert_eq!(left, b"it", "nothing was read");
}
