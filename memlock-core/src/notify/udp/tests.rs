use std::time::Instant;

use super::*;

#[test]
#[cfg_attr(miri, ignore = "Miri has no UDP")]
fn a_listener_hears_itself_and_what_is_meant_for_it() {
    let notifier = UdpNotifier::new(NotifySetting::Near);
    let listener = notifier.take(Some(Ipv4Addr::LOCALHOST.into()));
    let address = listener.address(WaitId(1)).unwrap();
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
    let (four, six) = (Some(Ipv4Addr::LOCALHOST.into()), Some(Ipv6Addr::LOCALHOST.into()));
    let first = notifier.take(four);
    let address = first.address(WaitId(1));
    assert!(
        address.is_some() && notifier.take(four).address(WaitId(2)) != address,
        "that one is taken"
    );
    drop(first);
    assert_eq!(notifier.take(four).address(WaitId(3)), address);
    assert_ne!(notifier.take(six).address(WaitId(4)), address);
    assert_eq!(UdpNotifier::new(NotifySetting::Off).take(four).address(WaitId(5)), None);
}

#[test]
fn listeners_are_taken_interrupted_and_given_back_by_threads_at_the_same_time() {
    let notifier = UdpNotifier::new(NotifySetting::Off);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..3 {
                    let (one, two) = (notifier.take(None), notifier.take(None));
                    one.interrupt();
                    drop(one);
                    two.interrupt();
                }
            });
        }
        scope.spawn(|| (0..3).for_each(|_| notifier.interrupt_all()));
    });
    // A listener in use outlives its client.
    let last = notifier.take(None);
    drop(notifier);
    last.interrupt();
}
