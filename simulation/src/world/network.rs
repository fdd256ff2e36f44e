//! The network: requests on their way to the server, and their fate.

use std::collections::VecDeque;
use std::time::Duration;

use memlock_core::clock::Moment;
use memlock_core::store::Reply;
use memlock_core::store::memcached::Life;

use super::current::{sleep_all_until, sleep_until, with};
use super::event::Event;
use super::request::{Fate, Request};
use super::state::World;
use crate::oracle::Requester;
use crate::server::{Command, OFF_ITS_PROCESSOR};
use crate::site::Site;
use crate::time::{MICRO, MILLI, Nanos, SECOND};

/// A client does not distrust an answer within this time.
const PROMPT_ANSWER: Nanos = 51 * MILLI;

/// How long a client waits for a reply.
const IO_TIMEOUT: Nanos = SECOND;

/// For how long a server that did not answer in time counts as silent.
pub(super) const SILENCE: Duration = Duration::from_secs(10);

/// Why an exchange failed, and whether the server may have executed part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExchangeError {
    Unreachable,
    Lost,
}

/// A request that was sent: its number, and until when its reply is awaited.
pub(crate) struct Waiting(u64, Nanos);

/// Sends operations to the server that the process is connected to.
pub(crate) fn send(
    process: usize,
    site: usize,
    commands: VecDeque<Command>,
) -> Result<Waiting, ExchangeError> {
    let sent = with(|world| world.send(process, site, commands));
    sent.map(|(number, timeout)| Waiting(number, timeout)).ok_or(ExchangeError::Unreachable)
}

/// Waits for the replies. The time-out counts from the sending.
pub(crate) fn receive(&Waiting(number, timeout): &Waiting) -> Result<Vec<Reply>, ExchangeError> {
    loop {
        let ended = with(|world| world.collect(number, timeout));
        if let Some(ended) = ended {
            return ended;
        }
        if !sleep_until(timeout) {
            return Err(ExchangeError::Lost);
        }
    }
}

/// The incarnation of that server that this process is connected to; connects if necessary.
pub(crate) fn connect(process: usize, site: usize) -> Result<Life, ExchangeError> {
    loop {
        let began = with(|world| world.now);
        let step = with(|world| world.dial(process, site));
        match step {
            Dial::Ready(life) => return Ok(life),
            Dial::Broke => return Err(ExchangeError::Lost),
            Dial::Refused(time) => {
                sleep_all_until(time);
                if time >= began + IO_TIMEOUT / 2 {
                    with(|world| world.note_silence(process, site));
                }
                return Err(ExchangeError::Unreachable);
            }
            Dial::Wait(time) => {
                if !sleep_all_until(time) {
                    return Err(ExchangeError::Unreachable);
                }
                with(|world| world.dialled(process, site));
            }
        }
    }
}

enum Dial {
    Ready(Life),
    Broke,
    Refused(Nanos),
    Wait(Nanos),
}

impl World {
    pub(crate) fn latency(&mut self, host: usize) -> Nanos {
        let base = self.hosts[host].latency;
        let jitter = self.rng.spread(MICRO, base);
        let slow = self.scenario.slow_permille;
        let spike = if self.rng.permille(slow) { self.rng.spread(MILLI, 900 * MILLI) } else { 0 };
        base / 2 + jitter + spike
    }

    fn dial(&mut self, process: usize, site: usize) -> Dial {
        if self.current.is_none() || !self.processes[process].alive {
            return Dial::Refused(self.now);
        }
        let host = self.processes[process].host;
        let Site { ref server, down_until, stalled_until, .. } = self.sites[site];
        let life = server.life();
        let cut_until = self.cut_off_until(host, site).max(self.partitions.replies(host, site));
        match self.processes[process].links[site].connected {
            Some(connected) if connected == life && down_until <= self.now => Dial::Ready(life),
            Some(_) => {
                self.processes[process].links[site].connected = None;
                // A closed connection is noticed only if it is checked before use.
                if self.rng.permille(500) { Dial::Broke } else { self.dial(process, site) }
            }
            None if down_until > self.now => {
                let time = self.now + self.latency(host);
                Dial::Refused(time)
            }
            None if cut_until > self.now => Dial::Refused(self.now + IO_TIMEOUT),
            None => {
                let time = self.now.max(stalled_until) + 2 * self.latency(host);
                if time > self.now + IO_TIMEOUT {
                    Dial::Refused(self.now + IO_TIMEOUT)
                } else {
                    Dial::Wait(time)
                }
            }
        }
    }

    /// Until when no request of the host reaches the server.
    pub(super) fn cut_off_until(&self, host: usize, site: usize) -> Nanos {
        self.hosts[host].cut_off_until.max(self.partitions.requests(host, site))
    }

    /// A server that did not answer in time counts as silent for a while.
    fn note_silence(&mut self, process: usize, site: usize) {
        let now = self.moment(process);
        if self.scenario.has_quorum() {
            self.processes[process].links[site].silent_until = Some(now + SILENCE);
        }
    }

    /// What the clock of a process shows.
    pub(crate) fn moment(&self, process: usize) -> Moment {
        Moment::from_boot(Duration::from_nanos(self.local(self.processes[process].host)))
    }

    fn dialled(&mut self, process: usize, site: usize) {
        if self.sites[site].down_until > self.now {
            return;
        }
        let (server, now) = (&self.sites[site].server, self.moment(process));
        let life = server.life();
        let link = &mut self.processes[process].links[site];
        link.connected = Some(life);
        link.shown = Some((server.unix_time(), now));
        if let Some(guard) = self.scenario.guard() {
            link.observed.connected(guard, life.epoch(), Life::age(server.uptime()), now);
        }
    }

    fn send(
        &mut self,
        process: usize,
        site: usize,
        commands: VecDeque<Command>,
    ) -> Option<(u64, Nanos)> {
        let task = self.current?;
        let life = self.processes[process].links[site].connected?;
        let host = self.processes[process].host;
        let lossy = self.scenario.lossy_permille;
        let mut fate = Fate::Fine;
        if self.rng.permille(lossy) {
            fate = self.rng.pick(&[Fate::LostOnTheWay, Fate::ReplyLost, Fate::Reset, Fate::Late]);
        }
        let mut arrival = self.now + self.latency(host);
        if fate == Fate::Late {
            arrival = self.now + IO_TIMEOUT + self.rng.spread(MICRO, 8 * SECOND);
        }
        if self.hosts[host].cut_off_until > self.now {
            fate = Fate::LostOnTheWay;
        } else if let cut_until @ 1.. = self.partitions.requests(host, site)
            && cut_until > self.now
        {
            // It may be sent again when the partition is over.
            fate = self.rng.pick(&[Fate::LostOnTheWay, Fate::LostOnTheWay, Fate::Late]);
            arrival = cut_until + self.rng.spread(MILLI, 2 * SECOND);
        }
        let number = self.sequence + 1;
        self.trace(|world| {
            let list: Vec<String> =
                commands.iter().map(|it| format!("{} {}", it.verb(), it.key())).collect();
            format!(
                "request {number}{}: {}{}",
                if world.scenario.has_quorum() { format!(" to s{site}") } else { String::new() },
                list.join(", "),
                if fate == Fate::Fine { String::new() } else { format!(" ({fate:?})") }
            )
        });
        self.oracle.renewers.sends(task, self.now);
        let request = Request {
            sent: self.now,
            task,
            process,
            site,
            life,
            sent_all: commands.iter().cloned().collect(),
            commands,
            drawn: None,
            replies: Vec::new(),
            fate,
            ended: None,
            given_up: false,
        };
        if fate != Fate::LostOnTheWay {
            self.at(arrival, Event::Arrive(number));
        } else {
            self.sequence += 1;
        }
        self.requests.insert(number, request);
        Some((number, self.now + IO_TIMEOUT))
    }

    pub(crate) fn arrive(&mut self, number: u64) {
        let Some(request) = self.requests.get(&number) else { return };
        let (site, sent) = (request.site, request.sent);
        let Site { ref server, down_until, stalled_until, clock_back, .. } = self.sites[site];
        let life = server.life();
        if stalled_until > self.now {
            let later = stalled_until + self.rng.within(0..MILLI);
            return self.at(later, Event::Arrive(number));
        }
        // A documented limit: a request that reaches a stopped server just before it continues is
        // answered promptly, and may be stored against a clock that is behind. The simulation
        // excludes it.
        if clock_back > self.now && sent + PROMPT_ANSWER > stalled_until {
            let later = clock_back + self.rng.within(1..MILLI);
            return self.at(later, Event::Arrive(number));
        }
        let Some(mut request) = self.requests.remove(&number) else { return };
        let gone = request.life != life || down_until > self.now;
        let host = self.processes[request.process].host;
        if gone || self.cut_off_until(host, site) > self.now && self.rng.permille(500) {
            if gone {
                request.ended = Some(false);
                self.wake_for(&request);
            }
            self.requests.insert(number, request);
            return;
        }
        self.oracle.changing =
            Some(Requester { process: request.process, task: request.task, sent: request.sent });
        while let Some(command) = request.commands.pop_front() {
            let early = self.scenario.unordered && command.draws_early() && request.drawn.is_none();
            if early && self.rng.permille(50) {
                // The server's thread is off its processor before it locks the item.
                request.drawn = Some(self.sites[site].server.draw());
                request.commands.push_front(command);
                let later = self.now + self.rng.spread(10 * MICRO, OFF_ITS_PROCESSOR);
                self.at(later, Event::Arrive(number));
                self.requests.insert(number, request);
                return;
            }
            let reply = self.sites[site].server.run(&command, request.drawn.take());
            self.trace(|_| {
                format!(
                    "server: request {number}: {} {} -> {}",
                    command.verb(),
                    command.key(),
                    brief(&reply)
                )
            });
            request.replies.push(reply);
            if !request.commands.is_empty() && self.rng.permille(100) {
                // A command of another connection comes in between.
                let soon = self.now + self.rng.within(MICRO..200 * MICRO);
                self.at(soon, Event::Arrive(number));
                self.requests.insert(number, request);
                return;
            }
        }
        let back = self.now + self.latency(host);
        if matches!(request.fate, Fate::Fine | Fate::Reset) {
            self.at(back, Event::Answer(number));
        }
        self.requests.insert(number, request);
    }

    pub(crate) fn answer(&mut self, number: u64) {
        let Some(mut request) = self.requests.remove(&number) else { return };
        let host = self.processes[request.process].host;
        let cut_until =
            self.hosts[host].cut_off_until.max(self.partitions.replies(host, request.site));
        if cut_until <= self.now {
            request.ended = Some(request.fate == Fate::Fine);
            self.wake_for(&request);
        }
        self.requests.insert(number, request);
    }

    /// A command of that process got no reply.
    pub(crate) fn is_in_doubt(&mut self, process: usize, command: &Command) {
        let writes = matches!(
            command,
            Command::Delete { .. } | Command::CompareAndSet { .. } | Command::Put { .. }
        );
        let key = command.key().trim_end_matches("%wait").trim_end_matches("%fence");
        self.oracle.is_in_doubt(process, key, writes);
    }

    fn wake_for(&mut self, request: &Request) {
        if !request.given_up && self.processes[request.process].alive {
            self.resume_at(request.task, self.now);
        }
    }

    /// The result of a request, if it has ended by now.
    fn collect(
        &mut self,
        number: u64,
        timeout: Nanos,
    ) -> Option<Result<Vec<Reply>, ExchangeError>> {
        let late = self.now >= timeout;
        let request = self.requests.get_mut(&number)?;
        match request.ended {
            Some(true) => {
                let request = self.requests.remove(&number)?;
                let link = &mut self.processes[request.process].links[request.site];
                (link.silent_until, link.probe) = (None, None);
                return Some(Ok(request.replies));
            }
            None if !late => return None,
            _ => {}
        }
        request.given_up = true;
        let (process, site) = (request.process, request.site);
        let sent = request.sent_all.clone();
        sent.iter().for_each(|command| self.is_in_doubt(process, command));
        self.processes[process].links[site].connected = None;
        if late {
            self.note_silence(process, site);
        }
        self.trace(|_| format!("request {number}: no answer"));
        Some(Err(ExchangeError::Lost))
    }
}

fn brief(reply: &Reply) -> String {
    match reply {
        Reply::Stored(stored) => format!("stored, cas {}", stored.version.number()),
        Reply::Value(item) => format!(
            "value {:?}, cas {}, {:?} left",
            String::from_utf8_lossy(&item.value),
            item.version.number(),
            item.remaining
        ),
        other => format!("{other:?}").to_lowercase(),
    }
}
