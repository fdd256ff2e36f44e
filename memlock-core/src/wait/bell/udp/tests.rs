use std::time::Instant;

use super::*;

#[test]
#[cfg_attr(miri, ignore = "Miri has no UDP")]
fn a_bell_hears_itself_and_what_is_meant_for_it() {
    let bells = UdpBells::new(Setting::Near);
    let bell = bells.take(Some(Ipv4Addr::LOCALHOST.into()));
    let address = bell.address(WaitId(1)).unwrap();
    let long = Duration::from_secs(20);
    while bells.reach() != Reach::Untested {
        bell.sleep(long);
        assert_eq!(bell.heard(&[WaitId(2)]), None, "that was nobody's ring");
    }
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    for noise in [&b"GET / HTTP/1.0\r\n"[..], &[0; 1400], b"", &Ring::default().datagram(WaitId(3))]
    {
        stranger.send_to(noise, address).unwrap();
    }
    let ring = Ring {
        after: Duration::from_micros(5),
        behind: [(address, WaitId(9))].into_iter().collect(),
    };
    bells.ring(address, WaitId(2), ring);
    let heard = loop {
        bell.sleep(long);
        if let Some(heard) = bell.heard(&[WaitId(2)]) {
            break heard;
        }
    };
    assert_eq!(heard, ring);
    let began = Instant::now();
    bells.nudge_all();
    bell.sleep(long);
    assert!(began.elapsed() < long);
    let began = Instant::now();
    bell.sleep(Duration::from_millis(1));
    assert!(began.elapsed() >= Duration::from_millis(1));
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no UDP")]
fn a_bell_that_was_given_back_is_taken_again_where_it_fits() {
    let bells = UdpBells::new(Setting::Near);
    let (four, six) = (Some(Ipv4Addr::LOCALHOST.into()), Some(Ipv6Addr::LOCALHOST.into()));
    let first = bells.take(four);
    let address = first.address(WaitId(1));
    assert!(
        address.is_some() && bells.take(four).address(WaitId(2)) != address,
        "that one is taken"
    );
    drop(first);
    assert_eq!(bells.take(four).address(WaitId(3)), address);
    assert_ne!(bells.take(six).address(WaitId(4)), address);
    assert_eq!(UdpBells::new(Setting::Off).take(four).address(WaitId(5)), None);
}

#[test]
fn bells_are_taken_nudged_and_given_back_by_threads_at_the_same_time() {
    let bells = UdpBells::new(Setting::Off);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..3 {
                    let (one, two) = (bells.take(None), bells.take(None));
                    one.nudge();
                    drop(one);
                    two.nudge();
                }
            });
        }
        scope.spawn(|| (0..3).for_each(|_| bells.nudge_all()));
    });
    // One that is in use outlives its client.
    let last = bells.take(None);
    drop(bells);
    last.nudge();
}
