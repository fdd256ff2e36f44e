//! Threads that memlock starts itself, and the signals that they wait for: tasks like any other.

use std::time::Duration;

use memlock_core::thread::Threads;

use crate::adapters::until;
use crate::world::{self, World, with};

pub(crate) struct SimThreads;

impl Threads for SimThreads {
    fn start(&self, body: Box<dyn FnOnce() + Send>) {
        with(|world| {
            if let Some(task) = world.current {
                let process = world.tasks[task].process;
                world.trace(|_| "starts a thread".to_owned());
                world.starting.push((process, body));
            }
        });
    }

    fn sleep(&self, signal: usize, limit: Duration) -> bool {
        let Some((task, process)) =
            with(|world| world.current.map(|task| (task, world.tasks[task].process)))
        else {
            return false;
        };
        let end = until(process, limit);
        with(|world| world.sleepers.entry(signal).or_default().push(task));
        let slept = world::sleep_until(end);
        with(|world| world.wakes_up(signal, task));
        slept
    }

    fn wake_all(&self, signal: usize) {
        with(|world| {
            // Killed tasks are still in the list; and the address of their signal may have been
            // reused.
            let sleepers = world.sleepers.remove(&signal).unwrap_or_default();
            for task in sleepers {
                if world.processes[world.tasks[task].process].alive {
                    world.wake(task);
                }
            }
        });
    }

    fn mark(&self, is_marked: bool) -> bool {
        with(|world| match world.current {
            Some(task) if is_marked => !world.marked.insert(task),
            Some(task) => world.marked.remove(&task),
            None => false,
        })
    }
}

impl World {
    fn wakes_up(&mut self, signal: usize, task: usize) {
        if let Some(sleepers) = self.sleepers.get_mut(&signal) {
            sleepers.retain(|&other| other != task);
            if sleepers.is_empty() {
                self.sleepers.remove(&signal);
            }
        }
    }
}
