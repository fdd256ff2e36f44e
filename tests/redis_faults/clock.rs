//! When items expire.

use std::time::{Duration, Instant};

use memlock_core::Release;
use memlock_tests::assert_safe;

use crate::client;
use crate::stores::redis::{Redis, reply};

/// What the server is asked for beyond the lease.
const MARGIN: Duration = Duration::from_millis(2);

#[test]
fn a_lease_ends_on_the_server_in_the_millisecond_in_which_it_should() {
    let server = Redis::start(&[]);
    let client = client(&server);
    let mut admin = server.connection();
    for lease in [60_000, 60_001, 60_999].map(Duration::from_millis) {
        let mutex = client.mutex("m", lease).unwrap();
        let before = Instant::now();
        let mut lock = mutex.try_lock().unwrap().unwrap();
        let granted = Instant::now();
        let left = Duration::from_millis(reply(&mut admin, &["PTTL", "lock:m"]));
        let after = Instant::now();
        let most = lease + MARGIN;
        assert!(left <= most, "{left:?} of {lease:?}");
        assert!(left + (after - before) + MARGIN >= most, "{left:?} of {lease:?}");
        assert!(lock.remaining() <= lease.saturating_sub(granted - before) + (granted - before));
        assert_safe!(lock.remaining() < left, "the holder never believes in more than the server");
        assert_eq!(lock.extend(lease).unwrap(), memlock_core::Extension::Extended);
        let left = Duration::from_millis(reply(&mut admin, &["PTTL", "lock:m"]));
        assert!(left <= most && lock.remaining() < left, "{left:?} of {lease:?}");
        assert_eq!(lock.unlock().unwrap(), Release::Released);
    }
}
