//! What this process logs.

use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use log::{LevelFilter, Log, Metadata, Record};

/// The logger of the process, which keeps the records' texts.
#[derive(Debug)]
pub struct Listener(Mutex<Vec<String>>);

impl Listener {
    /// Listens from the first call on.
    pub fn at(level: LevelFilter) -> &'static Listener {
        static LISTENER: Listener = Listener(Mutex::new(Vec::new()));
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            log::set_logger(&LISTENER).expect("there is no other logger");
            log::set_max_level(level);
        });
        &LISTENER
    }

    /// What was logged since then.
    pub fn heard(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Log for Listener {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        self.heard().push(record.args().to_string());
    }

    fn flush(&self) {}
}
