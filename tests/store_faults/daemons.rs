//! Programs that close all descriptors.

use memlock_tests::daemon;

use crate::Bench;

/// The sockets of memlock are closed, and their numbers are those of other files.
pub(crate) fn what_a_daemon_opens_later_is_left_alone(bench: &Bench) {
    let url = bench.url_at(&bench.server().process().address());
    daemon::keeps_its_files_at_once(&url);
    daemon::keeps_its_files_after_a_pause(&url);
}
