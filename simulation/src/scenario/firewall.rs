//! Firewalls between hosts.

/// Which incoming wake-up messages the firewall of a host drops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Firewall {
    /// None.
    Open,
    /// Those of other hosts.
    Others,
    /// All of them, including those that a process sends to itself.
    All,
}

impl Firewall {
    pub(crate) fn drops(self, from: usize, to: usize) -> bool {
        match self {
            Firewall::Open => false,
            Firewall::Others => from != to,
            Firewall::All => true,
        }
    }
}
