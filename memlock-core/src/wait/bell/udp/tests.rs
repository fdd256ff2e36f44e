use std::time::Instant;

use super::*;
use proptest::prelude::*;

#[test]
fn a_ring_is_read_as_it_was_written_and_all_else_is_dropped() {
    for after in [Duration::ZERO, Duration::from_micros(1), Duration::from_millis(50)] {
        assert_eq!(read_ring(&ring(WaitId(7), after)), Some((WaitId(7), after)));
        assert!(ring(WaitId(7), after).len() <= LENGTH);
    }
    for bad in [
        "",
        "memlock/1 ",
        "memlock/1 7",
        "memlock/1 000000000000000g",
        "memlock/1 0000000000000007 ",
        "memlock/1 0000000000000007 50001",
        "memlock/1 0000000000000007 1 2",
        "memlock/1 0000000000000007 +5",
        "memlock/1 0000000000000007 000005",
        "memlock/2 0000000000000007",
    ] {
        assert_eq!(read_ring(bad.as_bytes()), None, "{bad:?}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no UDP")]
fn a_bell_hears_itself_and_what_is_meant_for_it() {
    let bells = UdpBells::new(Setting::Near);
    let bell = bells.take(Some(Ipv4Addr::LOCALHOST.into()));
    let address = bell.address(WaitId(1)).unwrap();
    let long = Duration::from_secs(20);
    while !bells.are_heard() {
        bell.sleep(long);
        assert_eq!(bell.heard(&[WaitId(2)]), None, "that was nobody's ring");
    }
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    for noise in [&b"GET / HTTP/1.0\r\n"[..], &[0; 1400], b"", &ring(WaitId(3), Duration::ZERO)] {
        stranger.send_to(noise, address).unwrap();
    }
    bells.ring(address, WaitId(2), Duration::from_micros(5));
    let rung = loop {
        bell.sleep(long);
        if let Some(rung) = bell.heard(&[WaitId(2)]) {
            break rung;
        }
    };
    assert_eq!(rung, Duration::from_micros(5));
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
    assert!(address.is_some() && bells.take(four).address(WaitId(2)) != address, "that one is taken");
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

proptest! {
    #[test]
    #[cfg_attr(miri, ignore = "hundreds of cases of safe code take Miri too long")]
    fn any_datagram_can_be_read(datagram: Vec<u8>, tail in "[0-9a-f ]{0,40}") {
        let _ = read_ring(&datagram);
        let _ = read_ring(format!("memlock/1 {tail}").as_bytes());
    }
}
