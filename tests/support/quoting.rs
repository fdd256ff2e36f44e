//! Servers that quote the login in an error.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::wire::Listener;

/// What a quoting server speaks, and when it quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quoting {
    /// In the reply to the login, as a Redis that does not know `AUTH`.
    RedisUnknown,
    /// In the reply to the login, in words of its own.
    RedisOwnWords,
    /// In a reply behind that to the login.
    RedisLater,
    /// In place of a reply to the password, which is asked for in clear text.
    Postgresql,
    /// In place of a reply to the startup message, which has the user.
    PostgresqlAtOnce,
    /// In its greeting.
    MySqlGreeting,
    /// In place of a reply to the login.
    MySqlLogin,
    /// In a packet that answers no request, when the client is logged in.
    MySqlLater,
}

impl Quoting {
    /// All of them.
    pub const ALL: [Quoting; 8] = [
        Quoting::RedisUnknown,
        Quoting::RedisOwnWords,
        Quoting::RedisLater,
        Quoting::Postgresql,
        Quoting::PostgresqlAtOnce,
        Quoting::MySqlGreeting,
        Quoting::MySqlLogin,
        Quoting::MySqlLater,
    ];

    /// A URL with this login, which is encoded already.
    pub fn url(self, server: &Listener, login: &str) -> String {
        let address = server.address();
        match self {
            Quoting::RedisUnknown | Quoting::RedisOwnWords | Quoting::RedisLater => {
                format!("redis://{login}@{address}?io_timeout=20s")
            }
            Quoting::Postgresql | Quoting::PostgresqlAtOnce => {
                format!("postgresql://{login}@{address}/d?sslmode=disable&io_timeout=20s")
            }
            Quoting::MySqlGreeting | Quoting::MySqlLogin | Quoting::MySqlLater => {
                format!("mysql://{login}@{address}/d?io_timeout=20s")
            }
        }
    }

    /// Starts a server. `quotation`: the login as its error has it.
    pub fn start(self, quotation: &str) -> Listener {
        let script = self.script(&format!("no good: '{quotation}'"));
        Listener::start(move |client, _| {
            // A client that has read the error closes the connection.
            let _ = play(client, &script);
        })
    }

    /// What the server sends when a client connects, and then in reply to each request.
    fn script(self, words: &str) -> Vec<Vec<u8>> {
        let none = Vec::new();
        match self {
            Quoting::RedisUnknown => {
                let text = "-ERR unknown command 'AUTH', with args beginning with:";
                vec![none, format!("{text} {words}\r\n").into_bytes()]
            }
            Quoting::RedisOwnWords => vec![none, format!("-ERR {words}\r\n").into_bytes()],
            Quoting::RedisLater => vec![none, format!("+OK\r\n-ERR {words}\r\n").into_bytes()],
            Quoting::Postgresql => {
                vec![none, b"R\0\0\0\x08\0\0\0\x03".to_vec(), postgresql_error(words)]
            }
            Quoting::PostgresqlAtOnce => vec![none, postgresql_error(words)],
            Quoting::MySqlGreeting => vec![mysql_error(0, words)],
            Quoting::MySqlLogin => vec![mysql_greeting(), mysql_error(2, words)],
            Quoting::MySqlLater => {
                vec![mysql_greeting(), packet(2, b"\0\0\0\x02\0\0\0"), mysql_error(0, words)]
            }
        }
    }
}

fn play(mut client: &TcpStream, script: &[Vec<u8>]) -> std::io::Result<()> {
    let mut request = [0; 16 * 1024];
    for (place, reply) in script.iter().enumerate() {
        if place > 0 && client.read(&mut request)? == 0 {
            return Ok(());
        }
        client.write_all(reply)?;
    }
    // Until the client closes the connection.
    while client.read(&mut request)? > 0 {}
    Ok(())
}

fn postgresql_error(words: &str) -> Vec<u8> {
    let body = format!("SFATAL\0VFATAL\0C28P01\0M{words}\0\0");
    let length = u32::try_from(body.len() + 4).expect("a short text").to_be_bytes();
    [b"E", &length[..], body.as_bytes()].concat()
}

fn packet(sequence: u8, payload: &[u8]) -> Vec<u8> {
    let [first, second, third, ..] = payload.len().to_le_bytes();
    [&[first, second, third, sequence], payload].concat()
}

fn mysql_error(sequence: u8, words: &str) -> Vec<u8> {
    packet(sequence, &[b"\xff\x15\x04#28000", words.as_bytes()].concat())
}

/// Version 8, with a challenge for `mysql_native_password`.
fn mysql_greeting() -> Vec<u8> {
    const CAPABILITIES: u32 =
        0x0001 | 0x0008 | 0x0200 | 0x8000 | 0x0001_0000 | 0x0002_0000 | 0x0008_0000;
    let [first, second, third, fourth] = CAPABILITIES.to_le_bytes();
    let head =
        [&b"\x0a8.0.1\0\x01\0\0\0ABCDEFGH\0"[..], &[first, second, 45, 2, 0, third, fourth, 21]];
    let tail = b"\0\0\0\0\0\0\0\0\0\0IJKLMNOPQRST\0mysql_native_password\0";
    packet(0, &[head.concat(), tail.to_vec()].concat())
}
