//! The world of the current thread, and how the current task waits in it.

use std::cell::{Cell, RefCell};

use corosensei::Yielder;

use super::state::World;
use crate::time::Nanos;

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
    static YIELDER: Cell<*const Yielder<(), ()>> = const { Cell::new(std::ptr::null()) };
}

/// Calls `body` with the world of this thread. `body` must not wait.
pub(crate) fn with<T>(body: impl FnOnce(&mut World) -> T) -> T {
    WORLD.with_borrow_mut(|world| match world {
        Some(world) => body(world),
        None => unreachable!("a run is going on wherever the world is asked for"),
    })
}

pub(crate) fn begin(world: World) {
    WORLD.set(Some(world));
}

pub(crate) fn end() -> Option<World> {
    WORLD.take()
}

/// Sets the yielder of the current task.
pub(crate) fn enter_task(yielder: &Yielder<(), ()>) {
    YIELDER.set(yielder);
}

pub(crate) fn leave_task() {
    YIELDER.set(std::ptr::null());
}

/// Lets others run until the current task is resumed. False if there is no task, because the
/// process is being killed.
fn suspend() -> bool {
    let yielder = YIELDER.get();
    if yielder.is_null() || with(|world| world.current.take()).is_none() {
        return false;
    }
    YIELDER.set(std::ptr::null());
    // SAFETY: the yielder belongs to the task that runs here: it lives on the task's stack, and
    // only that task resumes here.
    unsafe { (*yielder).suspend(()) };
    YIELDER.set(yielder);
    true
}

/// Sleeps until that time, or until the task is woken.
pub(crate) fn sleep_until(time: Nanos) -> bool {
    with(|world| {
        if let Some(task) = world.current {
            world.resume_at(task, time);
        }
    });
    suspend()
}

/// Sleeps until that time, whatever wakes the task before: the answer to another request of the
/// task, for example. False if the process is being killed.
pub(crate) fn sleep_all_until(time: Nanos) -> bool {
    let mut runs = with(|world| world.current.is_some());
    while runs && with(|world| world.now < time) {
        runs = sleep_until(time);
    }
    runs
}
