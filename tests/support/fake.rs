//! A scripted server for the answers that no real server gives.

use std::io::{self, Write};
use std::net::TcpStream;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

pub use crate::wire::Listener;
use crate::wire::{Command, Connections, Requests};

/// The version of servers that do not say otherwise.
const VERSION: &str = "1.6.18";
/// How much an endless answer sends before it falls silent.
const ENDLESS: usize = 64 << 20;
/// The time between two bytes of [`Behaviour::Drip`].
const DRIP: Duration = Duration::from_millis(100);
/// The item that clients read when they connect.
const CONFIG: &str = "memlock%config";
/// How long a fake pretends to have been up when it starts.
const UP_BEFORE: u64 = 100;

/// What a fake server does. "Greets" means that it answers `stats`, `stats settings` and `version`
/// like a memcached 1.6.18 with cas, and has no item in which clients agree. Where nothing else is
/// said, other commands find nothing and change nothing (`mg` EN, `ms` NS, `md` and `ma` NF, `mn` MN).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// Accepts and never answers.
    Silent,
    /// Accepts and closes.
    Closes,
    /// Answers every burst with these bytes.
    Garbage(Vec<u8>),
    /// Greets; the next command gets `HD c1` without a line end, then silence.
    HalfLine,
    /// Greets, as this version.
    Version(String),
    /// Greets; the next command gets 64 MiB of `a` without a line end, then silence.
    EndlessLine,
    /// Answers `stats` with 64 MiB of STAT lines without an END, then silence.
    EndlessStats,
    /// Greets; the next command gets `HD c111...`, one byte every 100 ms and never a line end.
    Drip,
    /// Greets; every meta command gets `HD c1 O999999`.
    WrongOpaque,
    /// Greets; every meta command gets the head of a value of 999,999,999 bytes, with its opaque,
    /// and no value.
    HugeValue,
    /// Greets; `ms` gets `SERVER_ERROR out of memory storing object`.
    ServerError,
}

/// Starts a server with this behaviour on a free loopback port. Dropping it closes its connections and
/// ends its threads.
pub fn start(behaviour: Behaviour) -> Listener {
    let script = Script { behaviour, boot: now() - UP_BEFORE };
    Listener::start(move |client, open| script.play(client, open))
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970").as_secs()
}

struct Script {
    behaviour: Behaviour,
    boot: u64,
}

/// What one command gets.
enum Answer {
    Text(String),
    /// This over and over, up to [`ENDLESS`] bytes, then silence.
    Endless(&'static str),
    /// The first text at once, then the second byte by byte and over and over, one every [`DRIP`].
    Dripping(&'static str),
    /// This, then silence.
    Last(&'static str),
}

impl Script {
    fn play(&self, client: &TcpStream, open: &Connections) {
        if self.behaviour == Behaviour::Closes {
            return;
        }
        let mut requests = Requests::new(client);
        while let Some(burst) = requests.next() {
            // The client may have gone; then there is nothing more to read either.
            let talking = match &self.behaviour {
                Behaviour::Silent => Ok(false),
                Behaviour::Garbage(bytes) => send(client, bytes).map(|()| true),
                _ => self.answer_all(&burst.commands, client, open),
            };
            if !talking.unwrap_or(false) {
                break;
            }
        }
        // Silence: whatever comes is thrown away until the client closes.
        while requests.next().is_some() {}
    }

    /// Answers a burst in one go, as far as it is answered at all; false when silence follows.
    fn answer_all(
        &self,
        commands: &[Command],
        client: &TcpStream,
        open: &Connections,
    ) -> io::Result<bool> {
        let mut text = String::new();
        for command in commands {
            match self.answer(command) {
                Answer::Text(more) => text.push_str(&more),
                Answer::Last(more) => {
                    text.push_str(more);
                    send(client, text.as_bytes())?;
                    return Ok(false);
                }
                Answer::Endless(unit) => {
                    send(client, text.as_bytes())?;
                    let block = unit.repeat((64 << 10) / unit.len());
                    for _ in 0..ENDLESS / block.len() {
                        send(client, block.as_bytes())?;
                    }
                    return Ok(false);
                }
                Answer::Dripping(head) => {
                    send(client, text.as_bytes())?;
                    for byte in head.bytes().chain(std::iter::repeat(b'1')) {
                        send(client, &[byte])?;
                        if !open.pause(DRIP) {
                            break;
                        }
                    }
                    return Ok(false);
                }
            }
        }
        send(client, text.as_bytes())?;
        Ok(true)
    }

    fn answer(&self, command: &Command) -> Answer {
        match (command.verb(), &self.behaviour) {
            ("stats", Behaviour::EndlessStats) => Answer::Endless("STAT filler 1\r\n"),
            ("stats", _) => Answer::Text(self.stats(command.word(1))),
            ("version", _) => Answer::Text(format!("VERSION {}\r\n", self.version())),
            ("mg", _) if command.word(1).ends_with(CONFIG) => {
                Answer::Text(format!("EN{}\r\n", opaque(command)))
            }
            (_, Behaviour::HalfLine) => Answer::Last("HD c1"),
            (_, Behaviour::EndlessLine) => Answer::Endless("a"),
            (_, Behaviour::Drip) => Answer::Dripping("HD c"),
            ("mg" | "ms" | "md" | "ma" | "mn", _) => Answer::Text(self.meta(command) + "\r\n"),
            _ => Answer::Text("ERROR\r\n".into()),
        }
    }

    fn meta(&self, command: &Command) -> String {
        let opaque = opaque(command);
        match (&self.behaviour, command.verb()) {
            (Behaviour::WrongOpaque, _) => "HD c1 O999999".into(),
            (Behaviour::HugeValue, _) => format!("VA 999999999 c1 t10{opaque}"),
            (Behaviour::ServerError, "ms") => "SERVER_ERROR out of memory storing object".into(),
            (_, "mg") => "EN".into(),
            (_, "mn") => "MN".into(),
            (_, "ms") => format!("NS{opaque}"),
            _ => format!("NF{opaque}"),
        }
    }

    fn version(&self) -> &str {
        match &self.behaviour {
            Behaviour::Version(version) => version,
            _ => VERSION,
        }
    }

    /// The lines of the server's identity, in the real server's order; a reader skips what it does
    /// not know.
    fn stats(&self, topic: &str) -> String {
        let now = now();
        let lines = match topic {
            "" => vec![
                ("pid", std::process::id().to_string()),
                ("uptime", (now - self.boot).to_string()),
                ("time", now.to_string()),
                ("version", self.version().to_string()),
                ("libevent", "2.1.12-stable".into()),
                ("pointer_size", "64".into()),
                ("max_connections", "1024".into()),
                ("curr_connections", "1".into()),
                ("cmd_get", "0".into()),
                ("cmd_set", "0".into()),
                ("limit_maxbytes", "67108864".into()),
                ("threads", "4".into()),
                ("curr_items", "0".into()),
                ("evictions", "0".into()),
            ],
            "settings" => vec![
                ("maxbytes", "67108864".into()),
                ("maxconns", "1024".into()),
                ("evictions", "on".into()),
                ("cas_enabled", "yes".into()),
                ("item_size_max", "1048576".into()),
                ("flush_enabled", "yes".into()),
                ("temp_lru", "no".into()),
                ("temporary_ttl", "61".into()),
            ],
            _ => Vec::new(),
        };
        let text: String =
            lines.iter().map(|(name, value)| format!("STAT {name} {value}\r\n")).collect();
        text + "END\r\n"
    }
}

fn send(mut client: &TcpStream, bytes: &[u8]) -> io::Result<()> {
    client.write_all(bytes)
}

/// The opaque as it stands in the reply to a command.
fn opaque(command: &Command) -> String {
    command.flag_value('O').map(|opaque| format!(" O{opaque}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::{Memcached, MemcachedText};
    use std::io::{ErrorKind, Read};

    fn client_of(behaviour: Behaviour) -> (Listener, MemcachedText) {
        let fake = start(behaviour);
        let client = MemcachedText::connect(&fake.address());
        (fake, client)
    }

    fn failure(client: &mut MemcachedText, line: &str) -> ErrorKind {
        client.set_reply_limit(Duration::from_millis(50));
        client.try_command(line).expect_err("this fake gives no whole line").kind()
    }

    #[test]
    fn a_fake_greets_like_the_real_server_and_is_one_incarnation() {
        let real = Memcached::start();
        let (_fake, mut client) = client_of(Behaviour::Version("1.6.12".into()));
        let stats = client.stats();
        assert_eq!(stats["version"], "1.6.12");
        assert!(stats.keys().all(|name| real.plain().stats().contains_key(name)));
        let settings = client.stats_of("settings");
        assert_eq!(settings["cas_enabled"], "yes");
        assert!(settings.keys().all(|name| real.plain().stats_of("settings").contains_key(name)));
        let boot = |stats: std::collections::HashMap<String, String>| {
            stats["time"].parse::<u64>().unwrap() - stats["uptime"].parse::<u64>().unwrap()
        };
        assert_eq!(boot(stats), boot(client.stats()));
    }

    #[test]
    fn a_greeting_in_one_packet_gets_both_ends() {
        let fake = start(Behaviour::HalfLine);
        let mut stream = TcpStream::connect(fake.address()).unwrap();
        stream.write_all(b"stats\r\nstats settings\r\n").unwrap();
        let mut said = Vec::new();
        while said.windows(5).filter(|window| window == b"END\r\n").count() < 2 {
            let mut piece = [0; 4096];
            let length = stream.read(&mut piece).unwrap();
            assert!(length > 0, "the greeting broke off");
            said.extend_from_slice(&piece[..length]);
        }
    }

    #[test]
    fn what_is_not_scripted_finds_nothing_like_an_empty_server() {
        let real = Memcached::start();
        assert!(real.plain().set("busy", "1", 0));
        let (_fake, mut client) = client_of(Behaviour::Version("1.6.18".into()));
        for line in ["mg k v", "md k O5", "ma k O6", "mn", "ms busy 1 ME O7\r\na", "nonsense"] {
            assert_eq!(client.command(line), real.plain().command(line), "{line}");
        }
        assert_eq!(client.command("version"), "VERSION 1.6.18");
    }

    #[test]
    fn a_silent_fake_says_nothing_and_a_closing_one_closes() {
        let (_fake, mut client) = client_of(Behaviour::Silent);
        assert!(matches!(
            failure(&mut client, "stats"),
            ErrorKind::WouldBlock | ErrorKind::TimedOut
        ));
        let (_fake, mut client) = client_of(Behaviour::Closes);
        let kind = client.try_command("stats").expect_err("it closes").kind();
        assert!(!matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut), "{kind:?}");
    }

    #[test]
    fn scripted_replies_come_as_scripted() {
        let cases = [
            (Behaviour::Garbage(b"rubbish\r\n".to_vec()), "stats", "rubbish"),
            (Behaviour::WrongOpaque, "mg k v O1", "HD c1 O999999"),
            (Behaviour::HugeValue, "mg k v O17", "VA 999999999 c1 t10 O17"),
            (Behaviour::ServerError, "ms k 1 ME\r\na", "SERVER_ERROR out of memory storing object"),
            (Behaviour::ServerError, "mg k v", "EN"),
        ];
        for (behaviour, line, reply) in cases {
            let (_fake, mut client) = client_of(behaviour);
            assert_eq!(client.command(line), reply);
            assert_eq!(client.command(line), reply, "again");
        }
    }

    #[test]
    fn half_lines_and_drips_never_end() {
        for behaviour in [Behaviour::HalfLine, Behaviour::Drip] {
            let (_fake, mut client) = client_of(behaviour);
            assert_eq!(client.stats()["version"], VERSION);
            let kind = failure(&mut client, "mg k");
            assert!(matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut), "{kind:?}");
        }
    }

    #[test]
    fn endless_answers_go_on_to_their_bound() {
        for (behaviour, line) in
            [(Behaviour::EndlessLine, "mg k\r\n"), (Behaviour::EndlessStats, "stats\r\n")]
        {
            let fake = start(behaviour);
            let mut stream = TcpStream::connect(fake.address()).unwrap();
            stream.write_all(line.as_bytes()).unwrap();
            let (mut piece, mut length) = (vec![0; 1 << 20], 0);
            while length < ENDLESS - (64 << 10) {
                let more = stream.read(&mut piece).unwrap();
                assert!(more > 0, "{length} bytes");
                length += more;
            }
            stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            while let Ok(more @ 1..) = stream.read(&mut piece) {
                length += more;
            }
            assert!(length <= ENDLESS, "{length} bytes");
        }
    }

    #[test]
    fn dropping_a_fake_ends_its_endless_answer() {
        let fake = start(Behaviour::EndlessLine);
        let mut stream = TcpStream::connect(fake.address()).unwrap();
        stream.write_all(b"mg k\r\n").unwrap();
        stream.read_exact(&mut [0; 100]).unwrap();
        drop(fake);
        assert!(stream.read_to_end(&mut Vec::new()).unwrap_or(0) < ENDLESS);
    }
}
