//! `--verbose`: what the library logs, on standard error.

use log::{LevelFilter, Log, Metadata, Record};

use crate::out;

struct ToStderr;

impl Log for ToStderr {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        out::complain(&format!("{}: {}", record.level().as_str().to_lowercase(), record.args()));
    }

    fn flush(&self) {}
}

/// Logs what matters when asked once, and everything when asked twice.
pub(crate) fn begin(verbose: u8) {
    let level = match verbose {
        0 => return,
        1 => LevelFilter::Info,
        _ => LevelFilter::Trace,
    };
    if log::set_logger(&ToStderr).is_ok() {
        log::set_max_level(level);
    }
}
