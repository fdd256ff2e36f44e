//! More waiters than the server has sessions.

use memlock_tests::sleepers::FewConnections;

use crate::{Place, Postgresql, alone};

fn on_a_server(server: &Postgresql, test: impl FnOnce(&Place<'_>, &FewConnections<'_>)) {
    let place = Place::on(server);
    let count = || server.sql(&format!("SELECT count(*) {}", place.sessions())).parse().unwrap();
    test(&place, &FewConnections { url: place.url(), sessions: &count });
}

#[test]
fn waiters_leave_their_sessions_to_others() {
    on_a_server(&alone(), |place, few| few.are_left_by_waiters(60, || place.end_sessions()));
}

#[test]
#[ignore = "real time: make prove"]
fn three_hundred_waiters_are_served_by_sixty_sessions() {
    let server = Postgresql::with(&["max_connections=60"]);
    on_a_server(&server, |place, few| few.are_left_by_waiters(300, || place.end_sessions()));
}

#[test]
fn a_waiter_that_holds_another_lock_keeps_a_session_for_it() {
    on_a_server(&alone(), |_, few| few.are_kept_for_renewals());
}

#[test]
fn a_wait_that_ends_on_a_full_server_leaves_the_queue() {
    on_a_server(&alone(), |_, few| few.leave_the_queue());
}
