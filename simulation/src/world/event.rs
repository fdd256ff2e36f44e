//! The events of the world, and what they ask of the executor.

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Event {
    Resume { task: usize, epoch: u64 },
    Arrive(u64),
    Answer(u64),
    WakeMessage { listener: usize, number: usize },
    Tick(usize),
    Back(usize),
    Fault(usize),
}

/// What the executor is to do with the stacks, which the world does not own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Todo {
    Nothing,
    Resume(usize),
    Kill(usize),
    Fork(usize),
    CancelWaits(usize),
    End,
}
