//! One run: the tasks of a seed, each on a stack of its own, from the start to the oracle's last
//! check.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult};
use memlock_core::clock::Clock;
use memlock_core::mutation::{self, Mutation};
use memlock_core::store::Store;
use memlock_core::store::quorum::Quorum;
use memlock_core::{Client, fork, thread};

use crate::actors::{Actor, HeldSlot, Items, Registry, renewing};
use crate::adapters::{SimClock, SimNotifier, SimStore, Watched};
use crate::oracle::Tally;
use crate::rng::Rng;
use crate::scenario::Scenario;
use crate::threads::SimThreads;
use crate::time::{Nanos, SECOND};
use crate::world::{self, Todo, World, with};

const STACK: usize = 256 * 1024;

thread_local! {
    /// Stacks of earlier runs: mapping a new one costs more than running many a task.
    static STACKS: RefCell<Vec<DefaultStack>> = const { RefCell::new(Vec::new()) };
}

/// A run that takes longer hangs.
const LONGEST: Nanos = 600 * SECOND;
const MOST_EVENTS: u64 = 2_000_000;

/// The result of a run.
pub(crate) struct Outcome {
    pub(crate) violation: Option<String>,
    pub(crate) trace: Vec<String>,
    pub(crate) digest: u64,
    pub(crate) events: u64,
    pub(crate) tally: Tally,
}

struct Thread {
    process: usize,
    coroutine: Option<Coroutine<(), (), (), DefaultStack>>,
}

#[derive(Clone)]
struct Program {
    client: Client,
    /// The process that made the client; forked children inherit it.
    maker: usize,
    /// What its threads hold.
    held_slots: Vec<HeldSlot>,
    items: Items,
    registry: Registry,
}

struct Executor {
    threads: Vec<Thread>,
    programs: Vec<Program>,
    stacks: Vec<DefaultStack>,
}

/// Runs a seed.
pub(crate) fn run(seed: u64, mutation: Option<Mutation>, recorded: bool) -> Outcome {
    mutation::put_in(mutation);
    thread::simulate(Some(&SimThreads));
    let scenario = Scenario::of(seed);
    let mut rng = Rng::new(!seed);
    let parts = rng.fork();
    world::begin(World::new(scenario.clone(), rng, recorded));
    with(|world| world.trace(|world| format!("{:?}", world.scenario)));
    let mut executor =
        Executor { threads: Vec::new(), programs: Vec::new(), stacks: STACKS.take() };
    executor.populate(&scenario, parts);
    let mut last = None;
    while last.is_none() {
        let todo = with(World::step);
        last = executor.act(todo);
        with(|world| {
            let World { oracle, sites, now, trace, moved, .. } = world;
            // The passing of time alone makes no lease invalid: it only ends.
            if std::mem::take(moved) || todo != Todo::Nothing {
                oracle.check_holds(*now, sites);
            }
            if let Some(violation) = oracle.lists.violation(false) {
                oracle.report_violation(violation);
            }
            if *now > LONGEST || trace.events > MOST_EVENTS {
                oracle.report_violation("the run does not come to an end");
            }
            if oracle.violation.is_some() {
                last = Some(());
            }
        });
    }
    with(|world| {
        let World { oracle, sites, .. } = world;
        oracle.check_end(sites);
    });
    executor.clear();
    STACKS.set(executor.stacks);
    thread::simulate(None);
    fork::pretend(None);
    mutation::put_in(None);
    let Some(World { oracle, trace, .. }) = world::end() else {
        unreachable!("it was begun above")
    };
    let violation = oracle.violation;
    Outcome {
        violation,
        trace: trace.lines,
        digest: trace.digest,
        events: trace.events,
        tally: oracle.tally,
    }
}

/// The store of a process: one server, or a quorum.
fn store(process: usize, scenario: &Scenario, clock: &Arc<dyn Clock>) -> Arc<dyn Store> {
    let member = |site| Arc::new(SimStore { process, site }) as Arc<dyn Store>;
    if !scenario.has_quorum() {
        return Arc::new(Watched { process, store: member(0) });
    }
    let members = (0..scenario.sites.len()).map(member).collect();
    match Quorum::new(members, Arc::clone(clock)) {
        Ok(quorum) => Arc::new(Watched { process, store: Arc::new(quorum) }),
        Err(error) => unreachable!("a quorum was refused: {error}"),
    }
}

impl Executor {
    fn populate(&mut self, scenario: &Scenario, mut rng: Rng) {
        for (process, &(host, threads)) in scenario.processes.iter().enumerate() {
            with(|world| world.new_process(host, 1 + process as u64));
            let clock: Arc<dyn Clock> = Arc::new(SimClock { process });
            let notifier = Arc::new(SimNotifier {
                process,
                off: scenario.notify_off || scenario.some_off && process % 2 == 1,
            });
            fork::pretend(Some(1 + process as u64));
            let store = store(process, scenario, &clock);
            let client = Client::with_parts(store, clock, notifier);
            let items = Items::default();
            let registry = Registry::default();
            self.programs.push(Program {
                client,
                maker: process,
                held_slots: Vec::new(),
                items,
                registry,
            });
            for _ in 0..threads {
                let actor = self.actor(process, rng.fork());
                self.start(process, move || actor.live());
            }
        }
    }

    fn actor(&mut self, process: usize, rng: Rng) -> Actor {
        let held_slot: HeldSlot = Arc::new(Mutex::new(None));
        self.programs[process].held_slots.push(Arc::clone(&held_slot));
        let Program { client, items, registry, .. } = self.programs[process].clone();
        Actor { client, rng, held_slot, items, registry }
    }

    fn start(&mut self, process: usize, body: impl FnOnce() + 'static) {
        with(|world| world.new_task(process));
        let stack = self.stacks.pop().unwrap_or_else(|| match DefaultStack::new(STACK) {
            Ok(stack) => stack,
            Err(error) => unreachable!("no memory for a stack: {error}"),
        });
        let coroutine = Coroutine::with_stack(stack, move |yielder, ()| {
            world::enter_task(yielder);
            body();
            world::leave_task();
        });
        self.threads.push(Thread { process, coroutine: Some(coroutine) });
    }

    /// Executes what the world cannot do itself. `Some` when the run is over.
    fn act(&mut self, todo: Todo) -> Option<()> {
        match todo {
            Todo::Nothing => {}
            Todo::End => return Some(()),
            Todo::Resume(task) => {
                self.resume(task);
                let process = self.threads[task].process;
                renewing::inspect(&self.programs[process].registry, process);
                self.start_renewers();
            }
            Todo::Kill(process) => self.kill(process),
            Todo::Fork(process) => self.fork(process),
            Todo::CancelWaits(process) => {
                let maker = self.programs[process].maker;
                let sharing: Vec<usize> = (0..self.programs.len())
                    .filter(|&other| self.programs[other].maker == maker)
                    .collect();
                let alive = with(|world| {
                    world.oracle.cancelled(&sharing);
                    fork::pretend(Some(world.processes[process].generation));
                    world.processes[process].alive
                });
                if alive {
                    self.programs[process].client.cancel_waits();
                }
            }
        }
        self.threads.iter().all(|thread| thread.coroutine.is_none()).then_some(())
    }

    fn resume(&mut self, task: usize) {
        let Thread { process, coroutine } = &mut self.threads[task];
        let Some(running) = coroutine else { return };
        with(|world| {
            world.current = Some(task);
            fork::pretend(Some(world.processes[*process].generation));
        });
        let result = catch_unwind(AssertUnwindSafe(|| running.resume(())));
        with(|world| world.current = None);
        match result {
            Ok(CoroutineResult::Yield(())) => return,
            Ok(CoroutineResult::Return(())) => {}
            Err(_) => with(|world| world.oracle.report_violation("memlock panicked")),
        }
        with(|world| world.tasks[task].done = true);
        world::leave_task();
        self.stacks.extend(coroutine.take().filter(Coroutine::done).map(Coroutine::into_stack));
    }

    /// All threads that memlock starts are renewers.
    fn start_renewers(&mut self) {
        for (process, body) in with(|world| std::mem::take(&mut world.starting)) {
            self.start(process, body);
            let task = self.threads.len() - 1;
            with(|world| world.oracle.renewers.begins(task));
        }
    }

    fn kill(&mut self, process: usize) {
        with(|world| fork::pretend(Some(world.processes[process].generation)));
        for thread in self.threads.iter_mut().filter(|thread| thread.process == process) {
            // The stack is unwound; what that tries to do to the world fails, because the process
            // is dead.
            if let Some(mut coroutine) = thread.coroutine.take() {
                coroutine.force_unwind();
                self.stacks.push(coroutine.into_stack());
            }
        }
    }

    fn fork(&mut self, parent: usize) {
        let born = with(|world| {
            let host = world.processes[parent].host;
            let generation = 1000 + world.processes.len() as u64;
            world.processes[parent].alive.then(|| world.new_process(host, generation))
        });
        let Some(process) = born else { return };
        let inherited = self.programs[parent].held_slots.first().cloned();
        let client = self.programs[parent].client.clone();
        let maker = self.programs[parent].maker;
        let items = Arc::clone(&self.programs[parent].items);
        let parents = Arc::clone(&self.programs[parent].registry);
        let registry = Registry::default();
        self.programs.push(Program { client, maker, held_slots: Vec::new(), items, registry });
        let rng = with(|world| world.rng.fork());
        let actor = self.actor(process, rng);
        self.start(process, move || {
            renewing::inherit(&parents);
            match inherited {
                Some(parents) => actor.inherit(&parents),
                None => actor.live(),
            }
        });
    }

    fn clear(&mut self) {
        let count = with(|world| world.processes.len());
        with(|world| world.processes.iter_mut().for_each(|process| process.alive = false));
        for process in 0..count {
            self.kill(process);
        }
        for (process, program) in self.programs.drain(..).enumerate() {
            with(|world| fork::pretend(Some(world.processes[process].generation)));
            drop(program);
        }
    }
}
