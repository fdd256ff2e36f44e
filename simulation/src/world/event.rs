//! What happens at a time, and what it asks of the scheduler.

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    Resume { task: usize, epoch: u64 },
    Arrive(u64),
    Answer(u64),
    WakeMessage { listener: usize, number: usize },
    Tick,
    Back,
    Fault(usize),
}

/// What the scheduler is to do with the stacks, which are not the world's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Todo {
    Nothing,
    Resume(usize),
    Kill(usize),
    Fork(usize),
    CancelWaits(usize),
    End,
}
