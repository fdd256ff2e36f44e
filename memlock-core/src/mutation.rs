//! Deliberate errors, to check that the simulation finds them.
//!
//! They exist only in builds with `--cfg memlock_sim`, which only the simulation uses. In other
//! builds, [`has`] is a constant and leaves no trace.
#![cfg_attr(
    not(memlock_sim),
    allow(dead_code, unreachable_pub, reason = "only the simulation names them all")
)]

/// One deliberate error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// A release that finds another version deletes whatever is there.
    BlindDelete,
    /// The item lives no longer than the lease.
    TtlOfTheLease,
    /// The item outlives the lease by one second only, though a server's clock may skip one.
    TtlPlusOne,
    /// The lease is counted from the reply.
    DeadlineFromReply,
    /// An extension is counted from the reply.
    ExtensionFromReply,
    /// Versions are trusted across a restart of the server.
    VersionsOutliveTheServer,
    /// A fence is the server's version alone.
    FenceWithoutBoot,
    /// A fence is the item's version, even if the server does not issue versions in order.
    FenceWithoutStamp,
    /// A slow grant is trusted, though the server may have been stopped.
    BelieveSlowGrants,
    /// A forked child uses what its parent holds.
    ChildrenHold,
    /// A release whose reply was lost counts as done.
    GuessReleased,
    /// After a lost reply to an extension, the holder relies on the longer lease.
    HopeForTheLonger,
    /// After a lost reply to an acquisition, the item is not read back.
    NoReadBack,
    /// The state of the lock that is read when a waiter joins the queue is ignored.
    NoLookAfterJoining,
    /// A waiter that gives up while it is being woken does not wake the next one.
    LeaveWithoutWaking,
    /// A releaser that woke a waiter early does not check that it is the next one.
    TrustTheEarlyWake,
    /// Waiters rely on wake-ups alone.
    WakeUpsAlone,
    /// A waiter that missed a message claims to be reachable.
    TrustTheUnreachable,
    /// The lock is not reserved for a waiter that may not receive its wake-up.
    ReserveForNobody,
    /// A waiter that was in the queue takes any reservation for its own.
    ClaimAnything,
    /// A lock that has been held for 0.3 s is taken for the reservation of a dead waiter.
    BreakWhatIsHeld,
    /// An insert does not check whether its session still exists.
    InsertWithoutSession,
    /// A client that claimed a key was first, even if another client committed the key.
    ClaimersAreFirst,
    /// A tear-down removes any session of the name.
    TearDownAnySession,
    /// A permit is stored for no more of the server's seconds than its lease has.
    PermitOfTheLease,
    /// A lease on permits is computed from an old reading of the server's clock.
    PermitFromOldTime,
    /// A lease on permits is counted from the reply.
    PermitDeadlineFromReply,
    /// A write of a semaphore that another client has changed in the meantime counts as done.
    ChangedIsGranted,
    /// A release that does not find its own permits releases another holder's.
    ReleaseAnyPermit,
    /// After a lost reply, the record is not read for granted permits.
    ForgetLostPermits,
    /// The next waiter is the first in the queue, regardless of priorities.
    IgnorePriority,
    /// New callers take permits that are reserved for a waiter for several.
    OvertakeGatherers,
    /// Permits whose lease is over do not become available.
    KeepExpired,
    /// Permits become available a second before the server's clock shows the end of their lease.
    DropTooEarly,
    /// A semaphore's item gets a relative expiry, instead of the one that it contains: it shows the
    /// wrong time.
    RelativeExpiry,
    /// A client counts the available permits by the number that its handle was opened with.
    CountByOwnNumber,
    /// A release of several permits wakes only one waiter.
    ForgetTheRest,
    /// A waiter that gives up leaves its reservation in the record.
    GatherForGood,
    /// Overtaken waiters are not counted as overtaken.
    NobodyAges,
    /// A tear-down whose reply was lost removes a semaphore that was set up since.
    TearDownWhatCame,
    /// A renewal that finds another version renews the item of any owner.
    KeepAnyones,
    /// A lease is renewed after its end.
    KeepPastTheEnd,
    /// A slow renewal is trusted, though the server may have been stopped.
    BelieveSlowRenewals,
    /// A renewal that finds another version considers the lock lost, though an earlier renewal may
    /// have changed the version.
    KeepChangedIsGone,
    /// A renewal whose reply was lost counts as a loss.
    KeepLostReplyIsLoss,
    /// A renewal whose reply was lost counts as done.
    KeepHopeRenewed,
    /// Permits are renewed by a slow read.
    RenewFromSlowLooks,
    /// Permits that are not in the record any more count as renewed.
    KeepGonePermits,
    /// A renewal that finds the lock gone, whether lost or released, adds it again.
    KeepPutsBack,
    /// A lease is renewed only after its end.
    KeepTooLate,
    /// A failed renewal is not retried in time.
    KeepOnlyOnce,
    /// A renewal continues though the holder has released the lock in the meantime.
    KeepWhatWasLetGo,
    /// A lease is renewed beyond the maximum hold.
    KeepBeyondMaxHold,
    /// The renewal thread does not forget what was released.
    KeepForGood,
    /// A lease at risk is not reported.
    NoWarning,
    /// A loss is not reported.
    LoseSilently,
    /// A loss is reported each time that it is seen.
    TellTwice,
    /// A lease at risk is reported each time that it is seen.
    WarnTwice,
    /// An acquisition whose first reply was lost counts its lease from the last attempt.
    CountFromTheLastTry,
    /// All acquisitions of a batch are granted if one of them is.
    GrantToAll,
    /// The operations of a batch that another process overtook are forgotten.
    ForgetTheRefused,
    /// A release in a batch whose reply was lost counts as done.
    GuessReleasedInBatch,
    /// A leader does not pass on the remaining operations.
    StrandTheNext,
    /// A server recovers for a little less than the guard.
    RecoverTooShort,
    /// A server is as old as it says.
    BelieveTheUptime,
    /// A server that recovers gives new grants.
    GrantWhileRecovering,
    /// A process hands its lock off on a server that recovers.
    HandOffWhileRecovering,
    /// A lease may be longer than the guard.
    LeaseBeyondTheGuard,
    /// A lock that was put back counts, though its lease had ended when the reply came.
    TrustLateReclaims,
    /// A lock is put back after its lease has ended.
    ReclaimLate,
    /// A lock whose release got no reply is put back.
    ReclaimReleased,
    /// A permit is handed off again by the token of a hand-off without a reply.
    HandOffAgain,
    /// A permit is handed off for the lease of the one who hands it off.
    HandOffOwnLease,
    /// A waiter that was handed off a permit leaves its reservation.
    LeaveReservation,
    /// A waiter that was handed off a permit leaves its place to nobody.
    KeepPlaceOfHandedOff,
}

impl Mutation {
    /// All mutations.
    pub const ALL: [Mutation; 75] = [
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
        Mutation::CountByOwnNumber,
        Mutation::ForgetTheRest,
        Mutation::GatherForGood,
        Mutation::NobodyAges,
        Mutation::TearDownWhatCame,
        Mutation::KeepAnyones,
        Mutation::KeepPastTheEnd,
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
        Mutation::RecoverTooShort,
        Mutation::BelieveTheUptime,
        Mutation::GrantWhileRecovering,
        Mutation::HandOffWhileRecovering,
        Mutation::LeaseBeyondTheGuard,
        Mutation::TrustLateReclaims,
        Mutation::ReclaimLate,
        Mutation::ReclaimReleased,
        Mutation::HandOffAgain,
        Mutation::HandOffOwnLease,
        Mutation::LeaveReservation,
        Mutation::KeepPlaceOfHandedOff,
    ];
}

#[cfg(memlock_sim)]
thread_local! {
    static PRESENT: std::cell::Cell<Option<Mutation>> = const { std::cell::Cell::new(None) };
}

/// Activates a mutation in this thread from now on.
#[cfg(memlock_sim)]
pub fn put_in(mutation: Option<Mutation>) {
    PRESENT.set(mutation);
}

/// Whether this mutation is active.
#[cfg(memlock_sim)]
pub fn has(mutation: Mutation) -> bool {
    PRESENT.get() == Some(mutation)
}

/// Whether this mutation is active: never.
#[cfg(not(memlock_sim))]
#[inline(always)]
pub const fn has(_: Mutation) -> bool {
    false
}
