//! The faults, each with how it begins and how it ends.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use memlock_tests::cable::Cable;
use memlock_tests::disk::Disk;
use memlock_tests::history::Span;
use memlock_tests::proxy::{Fault, Match};
use memlock_tests::server::Memcached;

use crate::cuts::Cutter;
use crate::world::World;
use crate::{Failure, now};

/// For how long after it went on a server's clock may be wrong.
const WAKING: Duration = Duration::from_millis(100);
/// A server of so many megabytes is soon full.
const SMALL: [&str; 2] = ["-m", "4"];
/// A server that is allowed twenty descriptors has seven of them left for connections.
const FEW: [&str; 4] = ["-c", "20", "-t", "1"];

#[derive(Clone, Debug)]
pub(crate) enum Injection {
    None,
    Cuts(Cutter),
    Delays,
    BlackHole,
    ByteByByte,
    RepeatedReplies,
    ClientsKilled,
    ClientsStopped,
    ServerRestarted,
    ServerFlushed,
    ServerStopped,
    ServerFull,
    FewConnections,
    FewDescriptors,
    CablePulled,
    DiskFull,
}

/// Ends a fault.
pub(crate) type Undo = Box<dyn FnOnce(&mut World) -> Result<(), Failure>>;

/// Where a fault is: in each of the first two, one thing can be wrong at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Between the proxy and its clients.
    Wire,
    /// The server's process.
    Server,
    Elsewhere,
}

impl Injection {
    /// What it is called, where it is, how long it lasts, and how long it then is gone, in
    /// milliseconds from and to.
    pub(crate) fn about(&self) -> (&'static str, Place, [(u64, u64); 2]) {
        use Place::{Elsewhere, Server, Wire};
        let long = [(2000, 3000), (0, 1)];
        match self {
            Injection::None => ("none", Elsewhere, long),
            Injection::Cuts(_) => ("connections cut", Wire, long),
            Injection::Delays => ("delays", Wire, long),
            Injection::BlackHole => ("black hole", Wire, [(200, 1200), (500, 900)]),
            Injection::ByteByByte => ("byte by byte", Wire, long),
            Injection::RepeatedReplies => ("reply bytes repeated", Wire, long),
            Injection::ClientsKilled => ("clients killed", Elsewhere, [(0, 1), (50, 250)]),
            // Across the leases, which last for one to two seconds, and the server's three.
            Injection::ClientsStopped => ("clients stopped", Elsewhere, [(300, 5500), (0, 100)]),
            Injection::ServerRestarted => {
                ("server killed, restarted", Server, [(100, 500), (1500, 2000)])
            }
            Injection::ServerFlushed => ("flush_all", Server, [(0, 1), (300, 900)]),
            Injection::ServerStopped => ("server stopped", Server, [(100, 1800), (300, 900)]),
            Injection::ServerFull => ("server full", Server, [(4000, 5000), (1500, 1600)]),
            Injection::FewConnections => ("connection limit", Server, [(4000, 5000), (1500, 1600)]),
            Injection::FewDescriptors => {
                ("no descriptors left", Elsewhere, [(300, 900), (300, 900)])
            }
            Injection::CablePulled => ("cable pulled", Elsewhere, [(500, 2500), (700, 1200)]),
            Injection::DiskFull => ("disk full", Elsewhere, [(300, 900), (300, 900)]),
        }
    }

    /// Begins it.
    pub(crate) fn begin(&self, world: &mut World) -> Result<Undo, Failure> {
        match self {
            Injection::None => Ok(nothing()),
            Injection::Cuts(cutter) => {
                let cutter = cutter.clone();
                world.proxy.decide(move |burst| cutter.decide(burst));
                Ok(Box::new(heal))
            }
            Injection::Delays => {
                let mut number = 0;
                world.proxy.decide(move |_| {
                    number += 1;
                    let time = Duration::from_millis(number % 90);
                    Some(if number % 2 == 0 {
                        Fault::DelayReply(time)
                    } else {
                        Fault::DelayRest(0, time)
                    })
                });
                Ok(Box::new(heal))
            }
            Injection::BlackHole => {
                world.proxy.black_hole(true);
                Ok(Box::new(|world| {
                    world.proxy.black_hole(false);
                    Ok(())
                }))
            }
            Injection::ByteByByte => {
                // An introduction is too long for pauses.
                world.proxy.inject_always(Match::Stats, Fault::Trickle(Duration::ZERO));
                world.proxy.inject_always(Match::Any, Fault::Trickle(Duration::from_micros(50)));
                Ok(Box::new(heal))
            }
            Injection::RepeatedReplies => {
                let mut number = 0;
                world.proxy.decide(move |_| {
                    number += 1;
                    (number % 3 == 0).then_some(Fault::RepeatReply(1 + number / 3 % 60))
                });
                Ok(Box::new(heal))
            }
            Injection::ClientsKilled => {
                world.crew.replace_any()?;
                Ok(nothing())
            }
            Injection::ClientsStopped => {
                let mut stopped = Vec::new();
                for _ in 0..1 + world.chance.below(3) {
                    stopped.extend(world.crew.stop_any()?);
                }
                Ok(Box::new(|world| {
                    stopped.into_iter().try_for_each(|number| world.crew.go_on(number))
                }))
            }
            Injection::ServerRestarted => {
                let place = begin_span(&mut world.losses);
                world.server.kill();
                Ok(Box::new(move |world| {
                    world.restart(&[]);
                    world.losses[place].to = now();
                    Ok(())
                }))
            }
            Injection::ServerFlushed => {
                world.lose(|world| world.server.plain().flush_all());
                Ok(nothing())
            }
            Injection::ServerStopped => {
                let place = begin_span(&mut world.pauses);
                world.server.pause();
                Ok(Box::new(move |world| {
                    world.server.resume();
                    world.pauses[place].to = now() + WAKING;
                    Ok(())
                }))
            }
            Injection::ServerFull => {
                let place = begin_span(&mut world.losses);
                world.restart(&SMALL);
                let filler = Filler::start(&world.server)?;
                Ok(Box::new(move |world| {
                    drop(filler);
                    world.restart(&[]);
                    world.losses[place].to = now();
                    Ok(())
                }))
            }
            Injection::FewConnections => {
                // A starting server has to get through to it.
                world.proxy.refuse(true);
                world.lose(|world| world.restart(&FEW));
                world.proxy.refuse(false);
                Ok(Box::new(|world| {
                    world.proxy.refuse(true);
                    world.lose(|world| world.restart(&[]));
                    world.proxy.refuse(false);
                    Ok(())
                }))
            }
            Injection::FewDescriptors => {
                world.crew.limit_descriptors(true)?;
                world.cut_all();
                Ok(Box::new(|world| world.crew.limit_descriptors(false)))
            }
            Injection::CablePulled => {
                cable(world)?.pull()?;
                Ok(Box::new(|world| Ok(cable(world)?.plug_in()?)))
            }
            Injection::DiskFull => {
                disk(world)?.fill();
                Ok(Box::new(|world| {
                    disk(world)?.empty();
                    Ok(())
                }))
            }
        }
    }
}

/// Something that is not over yet begins now; gives its place.
fn begin_span(spans: &mut Vec<Span>) -> usize {
    spans.push(Span { from: now(), to: Duration::MAX });
    spans.len() - 1
}

fn cable(world: &World) -> Result<&Cable, Failure> {
    Ok(world.setting.cable.as_ref().ok_or("there is no cable")?)
}

fn disk(world: &World) -> Result<&Disk, Failure> {
    Ok(world.setting.disk.as_ref().ok_or("there is no disk")?)
}

fn nothing() -> Undo {
    Box::new(|_| Ok(()))
}

fn heal(world: &mut World) -> Result<(), Failure> {
    world.proxy.clear_rules();
    Ok(())
}

/// Writes items of all sizes until it is dropped, so that a small server has to throw others out.
struct Filler {
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Filler {
    fn start(server: &Memcached) -> Result<Filler, Failure> {
        let mut stream = TcpStream::connect(server.address())?;
        // A server that answers in spite of `noreply`, and is not read, stops reading.
        stream.set_write_timeout(Some(Duration::from_secs(1)))?;
        let stopped = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&stopped);
        let thread = thread::spawn(move || {
            for round in 0_usize.. {
                let mut items = Vec::new();
                for number in 0..200 {
                    let value = "x".repeat((round + number) % 60 * 12 + 1);
                    let head = format!("set fill{round}-{number} 0 0 {} noreply\r\n", value.len());
                    items.extend_from_slice(head.as_bytes());
                    items.extend_from_slice(value.as_bytes());
                    items.extend_from_slice(b"\r\n");
                }
                // It ends with the server, if the server ends first.
                if told.load(Ordering::Relaxed) || stream.write_all(&items).is_err() {
                    return;
                }
                thread::sleep(Duration::from_millis(5));
            }
        });
        Ok(Filler { stopped, thread: Some(thread) })
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        // A panic there has been printed.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}
