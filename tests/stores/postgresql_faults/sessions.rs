//! More waiters than the server has sessions.

use memlock_tests::sleepers::FewConnections;

use crate::{Place, alone};

fn on_a_server(test: impl FnOnce(&Place<'_>, &FewConnections<'_>)) {
    let server = alone();
    let place = Place::on(&server);
    let count = || server.sql(&format!("SELECT count(*) {}", place.sessions())).parse().unwrap();
    test(&place, &FewConnections { url: place.url(), sessions: &count });
}

/// As an administrator does, all along.
#[test]
fn waiters_leave_their_sessions_to_others() {
    on_a_server(|place, few| few.are_left_by_waiters(30, || place.end_sessions()));
}

#[test]
fn a_waiter_that_holds_another_lock_keeps_a_session_for_it() {
    on_a_server(|_, few| few.are_kept_for_renewals());
}
