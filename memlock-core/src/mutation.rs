//! Flaws put in on purpose, to see that the simulation finds them.
//!
//! They are there only in a build with `--cfg memlock_sim`, which nothing but the simulation is
//! built with. In any other, [`has`] is a constant and leaves no trace.
#![cfg_attr(
    not(memlock_sim),
    allow(dead_code, unreachable_pub, reason = "only the simulation names them all")
)]

/// One way to get it wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// A release that finds another version deletes whatever is there.
    BlindDelete,
    /// The item lives no longer than the lease.
    TtlOfTheLease,
    /// The item outlives the lease by one second: a server's clock may leave one out.
    TtlPlusOne,
    /// The lease is counted from when the answer came.
    DeadlineFromReply,
    /// An extension is counted from when the answer came.
    ExtensionFromReply,
    /// Versions are trusted across a restart of the server.
    VersionsOutliveTheServer,
    /// A fence is the server's version alone.
    FenceWithoutBoot,
    /// A fence is the item's version, whether or not the server gives those in order.
    FenceWithoutStamp,
    /// A slow grant is relied on, though the server may have stood still.
    BelieveSlowGrants,
    /// A child uses what its parent holds.
    ChildrenHold,
    /// A release whose answer was lost is taken for done.
    GuessReleased,
    /// After a lost answer to an extension, the holder counts on the longer lease.
    HopeForTheLonger,
    /// After a lost reply to an acquisition, the item is not read back.
    NoReadBack,
    /// What entering the queue shows of the lock is not looked at.
    NoLookAfterJoining,
    /// A waiter that gives up while it is being woken does not wake the next one.
    LeaveWithoutWaking,
    /// A releaser that woke a waiter early does not check that it is the next one.
    TrustTheEarlyWake,
    /// Waiters rely on wake-ups alone.
    WakeUpsAlone,
    /// A waiter that missed a message says that it hears what is sent to it.
    TrustTheUnreachable,
    /// The lock is not reserved for a waiter that may not hear that it is woken.
    ReserveForNobody,
    /// A waiter that was in the queue takes any reservation for its own.
    ClaimAnything,
    /// What has been held for a second is taken for the reservation of a dead waiter.
    BreakWhatIsHeld,
    /// An insert does not see whether its session is still there.
    InsertWithoutSession,
    /// A client that claimed a key was first with it, even if another committed it.
    ClaimersAreFirst,
    /// A tear-down removes whatever session is there.
    TearDownAnySession,
    /// A permit's holder is given no more of the server's seconds than its lease has.
    PermitOfTheLease,
    /// A lease on permits is reckoned from what the server's clock showed some time ago.
    PermitFromOldTime,
    /// A lease on permits is counted from when the answer came.
    PermitDeadlineFromReply,
    /// A write of a semaphore that another client has changed meanwhile counts as done.
    ChangedIsGranted,
    /// A release that does not find its own permits gives back another holder's.
    ReleaseAnyPermit,
    /// After a lost reply, the record is not read for granted permits.
    ForgetLostPermits,
    /// The next waiter is the first one in the queue, whatever the priorities.
    IgnorePriority,
    /// Newcomers take what a waiter for several permits waits for.
    OvertakeGatherers,
    /// Permits whose lease is over are not taken back.
    KeepExpired,
    /// Permits are taken back a second before the server's clock shows the end of their lease.
    DropTooEarly,
    /// A semaphore's item is kept for so long, and not until when it says: so it tells the wrong
    /// time.
    RelativeExpiry,
    /// A release of several permits wakes as for one.
    ForgetTheRest,
    /// A waiter that gives up leaves its reservation in the record.
    GatherForGood,
    /// Waiters that are overtaken do not count that.
    NobodyAges,
    /// A tear-down whose answer was lost takes what was set up since.
    TearDownWhatCame,
    /// A renewer that finds another version renews what is there, whosever it is.
    KeepAnyones,
    /// A renewer renews what it keeps after the old lease is over.
    KeepPastTheEnd,
    /// A renewal is counted from when the answer came.
    KeepFromReply,
    /// A slow renewal is relied on, though the server may have stood still.
    BelieveSlowRenewals,
    /// A renewer that finds another version takes the lock for lost, though it was its own renewal
    /// that changed it.
    KeepChangedIsGone,
    /// A renewal without an answer is taken for a loss.
    KeepLostReplyIsLoss,
    /// A renewal without an answer is taken for done.
    KeepHopeRenewed,
    /// A look that took long is good enough to renew permits by.
    RenewFromSlowLooks,
    /// Permits that are not there any more are taken for renewed.
    KeepGonePermits,
    /// A renewal that finds the lock gone, be it lost or released, puts it there again.
    KeepPutsBack,
    /// What is kept is renewed when its lease is over, and not before.
    KeepTooLate,
    /// A renewal that failed is not tried again in time.
    KeepOnlyOnce,
    /// A renewal goes on though its holder has released it meanwhile.
    KeepWhatWasLetGo,
    /// What was held for as long as was allowed is renewed all the same.
    KeepBeyondMaxHold,
    /// A renewer does not forget what was released.
    KeepForGood,
    /// A lease at risk is not reported.
    NoWarning,
    /// The loss is not reported.
    LoseSilently,
    /// The loss is reported as often as it is seen.
    TellTwice,
    /// A lease at risk is reported as often as it is seen.
    WarnTwice,
    /// An acquisition whose first reply was lost counts its lease from its last try.
    CountFromTheLastTry,
    /// All acquisitions of a batch are granted, as long as one is.
    GrantToAll,
    /// Those in a batch that another process overtook are forgotten.
    ForgetTheRefused,
    /// A release in a batch whose reply was lost is taken for done.
    GuessReleasedInBatch,
    /// A leader does not hand on what is left.
    StrandTheNext,
    /// A waiter for the permits that its own process releases never goes to the queue.
    ParkForGood,
}

impl Mutation {
    /// All of them.
    pub const ALL: [Mutation; 64] = [
        Mutation::BlindDelete,
        Mutation::TtlOfTheLease,
        Mutation::TtlPlusOne,
        Mutation::DeadlineFromReply,
        Mutation::ExtensionFromReply,
        Mutation::VersionsOutliveTheServer,
        Mutation::FenceWithoutBoot,
        Mutation::FenceWithoutStamp,
        Mutation::BelieveSlowGrants,
        Mutation::ChildrenHold,
        Mutation::GuessReleased,
        Mutation::HopeForTheLonger,
        Mutation::NoReadBack,
        Mutation::NoLookAfterJoining,
        Mutation::LeaveWithoutWaking,
        Mutation::TrustTheEarlyWake,
        Mutation::WakeUpsAlone,
        Mutation::TrustTheUnreachable,
        Mutation::ReserveForNobody,
        Mutation::ClaimAnything,
        Mutation::BreakWhatIsHeld,
        Mutation::InsertWithoutSession,
        Mutation::ClaimersAreFirst,
        Mutation::TearDownAnySession,
        Mutation::PermitOfTheLease,
        Mutation::PermitFromOldTime,
        Mutation::PermitDeadlineFromReply,
        Mutation::ChangedIsGranted,
        Mutation::ReleaseAnyPermit,
        Mutation::ForgetLostPermits,
        Mutation::IgnorePriority,
        Mutation::OvertakeGatherers,
        Mutation::KeepExpired,
        Mutation::DropTooEarly,
        Mutation::RelativeExpiry,
        Mutation::ForgetTheRest,
        Mutation::GatherForGood,
        Mutation::NobodyAges,
        Mutation::TearDownWhatCame,
        Mutation::KeepAnyones,
        Mutation::KeepPastTheEnd,
        Mutation::KeepFromReply,
        Mutation::BelieveSlowRenewals,
        Mutation::KeepChangedIsGone,
        Mutation::KeepLostReplyIsLoss,
        Mutation::KeepHopeRenewed,
        Mutation::RenewFromSlowLooks,
        Mutation::KeepGonePermits,
        Mutation::KeepPutsBack,
        Mutation::KeepTooLate,
        Mutation::KeepOnlyOnce,
        Mutation::KeepWhatWasLetGo,
        Mutation::KeepBeyondMaxHold,
        Mutation::KeepForGood,
        Mutation::NoWarning,
        Mutation::LoseSilently,
        Mutation::TellTwice,
        Mutation::WarnTwice,
        Mutation::CountFromTheLastTry,
        Mutation::GrantToAll,
        Mutation::ForgetTheRefused,
        Mutation::GuessReleasedInBatch,
        Mutation::StrandTheNext,
        Mutation::ParkForGood,
    ];
}

#[cfg(memlock_sim)]
thread_local! {
    static PRESENT: std::cell::Cell<Option<Mutation>> = const { std::cell::Cell::new(None) };
}

/// Puts a mutation into what this thread does from now on.
#[cfg(memlock_sim)]
pub fn put_in(mutation: Option<Mutation>) {
    PRESENT.set(mutation);
}

/// Whether this mutation was put in.
#[cfg(memlock_sim)]
pub fn has(mutation: Mutation) -> bool {
    PRESENT.get() == Some(mutation)
}

/// Whether this mutation was put in: never.
#[cfg(not(memlock_sim))]
#[inline(always)]
pub const fn has(_: Mutation) -> bool {
    false
}
