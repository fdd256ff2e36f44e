//! The network: requests on their way to the server, and their fate.

use std::collections::VecDeque;

use memlock_core::store::Reply;
use memlock_core::store::memcached::Life;

use super::current::{sleep_until, with};
use super::event::Event;
use super::request::{Fate, Request};
use super::state::World;
use crate::oracle::Requester;
use crate::server::{Command, OFF_ITS_PROCESSOR};
use crate::time::{MICRO, MILLI, Nanos, SECOND};

/// A client does not distrust an answer within this time.
const PROMPT_ANSWER: Nanos = 51 * MILLI;

/// How long a client waits for a reply.
const IO_TIMEOUT: Nanos = SECOND;

/// Why an exchange failed, and whether the server may have executed part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExchangeError {
    Unreachable,
    Lost,
}

/// Sends operations to the server that the process is connected to, and waits for the replies.
pub(crate) fn exchange(
    process: usize,
    commands: VecDeque<Command>,
) -> Result<Vec<Reply>, ExchangeError> {
    let sent = with(|world| world.send(process, commands));
    let (number, timeout) = sent.ok_or(ExchangeError::Unreachable)?;
    loop {
        if !sleep_until(timeout) {
            return Err(ExchangeError::Lost);
        }
        let ended = with(|world| world.collect(number, timeout));
        if let Some(ended) = ended {
            return ended;
        }
    }
}

/// The incarnation of the server that this process is connected to; connects if necessary.
pub(crate) fn connect(process: usize) -> Result<Life, ExchangeError> {
    loop {
        let step = with(|world| world.link(process));
        match step {
            Link::Ready(life) => return Ok(life),
            Link::Broke => return Err(ExchangeError::Lost),
            Link::Refused(time) => {
                sleep_until(time);
                return Err(ExchangeError::Unreachable);
            }
            Link::Dial(time) => {
                if !sleep_until(time) {
                    return Err(ExchangeError::Unreachable);
                }
                with(|world| world.dialled(process));
            }
        }
    }
}

enum Link {
    Ready(Life),
    Broke,
    Refused(Nanos),
    Dial(Nanos),
}

impl World {
    pub(crate) fn latency(&mut self, host: usize) -> Nanos {
        let base = self.hosts[host].latency;
        let jitter = self.rng.spread(MICRO, base);
        let slow = self.scenario.slow_permille;
        let spike = if self.rng.permille(slow) { self.rng.spread(MILLI, 900 * MILLI) } else { 0 };
        base / 2 + jitter + spike
    }

    fn link(&mut self, process: usize) -> Link {
        if self.current.is_none() || !self.processes[process].alive {
            return Link::Refused(self.now);
        }
        let host = self.processes[process].host;
        let life = self.server.life();
        match self.processes[process].connection {
            Some(connected) if connected == life && self.down_until <= self.now => {
                Link::Ready(life)
            }
            Some(_) => {
                self.processes[process].connection = None;
                // A closed connection is noticed only if it is checked before use.
                if self.rng.permille(500) { Link::Broke } else { self.link(process) }
            }
            None if self.down_until > self.now => {
                let time = self.now + self.latency(host);
                Link::Refused(time)
            }
            None if self.hosts[host].cut_off_until > self.now => {
                Link::Refused(self.now + IO_TIMEOUT)
            }
            None => {
                let time = self.now.max(self.stalled_until) + 2 * self.latency(host);
                if time > self.now + IO_TIMEOUT {
                    Link::Refused(self.now + IO_TIMEOUT)
                } else {
                    Link::Dial(time)
                }
            }
        }
    }

    fn dialled(&mut self, process: usize) {
        if self.down_until <= self.now {
            let life = self.server.life();
            self.processes[process].connection = Some(life);
            if let Some(guard) = self.scenario.guard() {
                let (age, at) = (Life::age(self.server.uptime()), self.moment(process));
                self.processes[process].observed.connected(guard, life.epoch(), age, at);
            }
        }
    }

    fn send(&mut self, process: usize, commands: VecDeque<Command>) -> Option<(u64, Nanos)> {
        let task = self.current?;
        let life = self.processes[process].connection?;
        let host = self.processes[process].host;
        let lossy = self.scenario.lossy_permille;
        let mut fate = Fate::Fine;
        if self.rng.permille(lossy) {
            fate = self.rng.pick(&[Fate::LostOnTheWay, Fate::ReplyLost, Fate::Reset, Fate::Late]);
        }
        if self.hosts[host].cut_off_until > self.now {
            fate = Fate::LostOnTheWay;
        }
        let number = self.sequence + 1;
        self.trace(|_| {
            let list: Vec<String> =
                commands.iter().map(|it| format!("{} {}", it.verb(), it.key())).collect();
            format!(
                "request {number}: {}{}",
                list.join(", "),
                if fate == Fate::Fine { String::new() } else { format!(" ({fate:?})") }
            )
        });
        self.oracle.renewers.sends(task, self.now);
        let request = Request {
            sent: self.now,
            task,
            process,
            life,
            sent_all: commands.iter().cloned().collect(),
            commands,
            drawn: None,
            replies: Vec::new(),
            fate,
            ended: None,
            given_up: false,
        };
        let mut arrival = self.now + self.latency(host);
        if fate == Fate::Late {
            arrival = self.now + IO_TIMEOUT + self.rng.spread(MICRO, 8 * SECOND);
        }
        if fate != Fate::LostOnTheWay {
            self.at(arrival, Event::Arrive(number));
        } else {
            self.sequence += 1;
        }
        self.requests.insert(number, request);
        Some((number, self.now + IO_TIMEOUT))
    }

    pub(crate) fn arrive(&mut self, number: u64) {
        if self.stalled_until > self.now {
            let later = self.stalled_until + self.rng.within(0..MILLI);
            return self.at(later, Event::Arrive(number));
        }
        // A documented limit: a request that reaches a stopped server just before it continues is
        // answered promptly, and may be stored against a clock that is behind. The simulation
        // excludes it.
        let sent = self.requests.get(&number).map_or(0, |request| request.sent);
        if self.clock_back > self.now && sent + PROMPT_ANSWER > self.stalled_until {
            let later = self.clock_back + self.rng.within(1..MILLI);
            return self.at(later, Event::Arrive(number));
        }
        let Some(mut request) = self.requests.remove(&number) else { return };
        let gone = request.life != self.server.life() || self.down_until > self.now;
        let host = self.processes[request.process].host;
        if gone || self.hosts[host].cut_off_until > self.now && self.rng.permille(500) {
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
                request.drawn = Some(self.server.draw());
                request.commands.push_front(command);
                let later = self.now + self.rng.spread(10 * MICRO, OFF_ITS_PROCESSOR);
                self.at(later, Event::Arrive(number));
                self.requests.insert(number, request);
                return;
            }
            let reply = self.server.run(&command, request.drawn.take());
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
        if self.hosts[host].cut_off_until <= self.now {
            request.ended = Some(request.fate == Fate::Fine);
            self.wake_for(&request);
        }
        self.requests.insert(number, request);
    }

    fn wake_for(&mut self, request: &Request) {
        if !request.given_up && self.processes[request.process].alive {
            self.resume_at(request.task, self.now);
        }
    }

    /// A command of this process got no answer.
    pub(crate) fn is_in_doubt(&mut self, process: usize, command: &Command) {
        self.oracle.is_in_doubt(process, command.key(), command.may_release());
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
                return Some(Ok(request.replies));
            }
            None if !late => return None,
            _ => {}
        }
        request.given_up = true;
        for command in &request.sent_all {
            self.oracle.is_in_doubt(request.process, command.key(), command.may_release());
        }
        let process = request.process;
        self.processes[process].connection = None;
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
