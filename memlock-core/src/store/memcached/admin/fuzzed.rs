//! For the fuzzers: a tool with an open connection.

use std::collections::HashMap;
use std::net::TcpStream;
use std::time::Duration;

use super::text::Text;
use crate::descriptor::Descriptor;
use crate::error::Result;
use crate::store::admin::Admin;
use crate::store::remote::{Address, Place, Settings, Stream};

/// A tool with an open connection.
pub struct Tool(Text);

impl Tool {
    /// Uses this connection.
    ///
    /// # Errors
    /// If it is not open.
    pub fn over(stream: TcpStream) -> std::io::Result<Tool> {
        let stream = Stream::Tcp(Descriptor::new(stream)?);
        let timeout = Duration::from_secs(20);
        let settings = Settings { connect_timeout: timeout, io_timeout: timeout, pool: 1 };
        let address = Address::new(Place::Tcp("server".to_owned(), 1), settings);
        Ok(Tool(Text::over(stream, &address)))
    }

    /// Sends `stats`, or `stats settings`.
    ///
    /// # Errors
    /// As for any read.
    pub fn stats(&mut self, command: &str) -> Result<HashMap<String, String>> {
        self.0.stats(command)
    }

    /// The interface that every store offers to tools.
    pub fn admin(&mut self) -> &mut dyn Admin {
        &mut self.0
    }
}
