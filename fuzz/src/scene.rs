//! Calls over a store that everything may befall: what the targets of locks, lists and semaphores
//! begin with. The input is a program of calls, with its length before it, and what befalls the
//! store.

use std::sync::Arc;
use std::time::Duration;

use memlock_core::Client;
use memlock_core::clock::Clock;
use memlock_core::name::Key;
use memlock_core::store::{Item, Op, Reply, Route, Store};

use super::input::Input;
use super::store::Hostile;
use super::time::{Time, UnreachableNotifier};

/// What the calls are made in.
pub struct Scene<'a> {
    pub time: Arc<Time>,
    /// Whether nothing worse befalls the store than that packets are lost.
    pub honest: bool,
    store: Arc<Hostile>,
    program: Input<'a>,
    steps: usize,
}

impl<'a> Scene<'a> {
    /// Whatever the program says, it ends after so many steps.
    pub fn new(data: &'a [u8], steps: usize) -> Scene<'a> {
        let mut input = Input(data);
        let program = Input(input.chunk());
        let time = Time::new(Duration::from_micros(10));
        let clock: Arc<dyn Clock> = time.clone();
        let store = Hostile::new(clock, input.0);
        Scene { time, honest: !Hostile::tampers(input.0), store, program, steps }
    }

    /// One more client of the store.
    pub fn client(&self) -> Client {
        let clock: Arc<dyn Clock> = self.time.clone();
        Client::with_parts(
            self.store.clone(),
            clock,
            Arc::new(UnreachableNotifier(Arc::clone(&self.time))),
        )
    }

    /// What the store really has under this key.
    pub fn item(&self, key: &Key) -> Option<Item> {
        match self.store.inside().run(Route::of(key), &[Op::get(key)]).as_deref() {
            Ok([Reply::Value(item)]) => Some(item.clone()),
            _ => None,
        }
    }

    /// The next call: which, and what more is said of it. `None` at the end.
    pub fn next_call(&mut self) -> Option<(u8, &mut Input<'a>)> {
        self.steps = self.steps.checked_sub(1)?;
        if self.program.is_over() {
            return None;
        }
        let what = self.program.byte();
        Some((what, &mut self.program))
    }
}
