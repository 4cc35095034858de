//! Limits of what stations may cause.

use std::time::Duration;

/// Stations that a shelf knows: each takes up to some 64 KiB. A station beyond them takes the place of another one that
/// is not busy: see [`REPLACED_MAX`].
pub const STATIONS_MAX: usize = 1024;
/// Stations that take the place of others in one second. Addresses can be forged, so there may be any number of them:
/// each costs a search and a notice.
pub const REPLACED_MAX: u32 = 64;
/// The time after which a silent station is forgotten. The initiator of Linux queries all targets each minute.
pub const STATION_IDLE_MAX: Duration = Duration::from_secs(600);
/// Commands of a station in progress: those that it may have outstanding, and copies of them. Further ones are dropped,
/// and the station sends them again.
pub const STATION_COMMANDS_MAX: usize = 256;
/// Commands of all stations of a core in progress, with those that wait for earlier writes.
pub const COMMANDS_MAX: usize = 4096;
/// Commands of a station in progress as long as there is room for any: enough for a host that waits for each of them.
pub const STATION_COMMANDS_FLOOR: usize = 8;
/// Commands that one core executes at once. Each takes some 3 KiB for its task.
pub const SLOTS: usize = 1024;
/// Changes of configuration strings, mask lists and reservations in progress on a core: each writes metadata.
pub const CHANGES_MAX: usize = 16;
/// Answers in one second to requests of one station that move no data: an initiator sends a few each minute.
pub const STATION_ANSWERS_MAX: u32 = 512;
/// Answers in one second to all requests that move no data: a query of all targets from each of a hundred stations.
pub const ANSWERS_MAX: u32 = 8192;
/// Of these, answers for stations that had fewer than [`FIRST_ANSWERS`] in this second: as many stations as a host has
/// neighbours in a rack, and more, find their targets while others send queries as fast as they can.
pub const ANSWERS_KEPT: u32 = ANSWERS_MAX / 4;
/// See [`ANSWERS_KEPT`]. An initiator finds its target with one query, and asks for a few strings and lists.
pub const FIRST_ANSWERS: u32 = 8;
/// Refused stations that are reported in one minute, so that forged addresses do not fill the log.
pub const REFUSALS_MAX: u32 = 16;

/// Whether one more command is taken of a station that has `own` in progress, if there is room for `free` more: it
/// leaves as many as it has, so that stations whose commands take long leave room to the others.
#[must_use]
pub fn may_take(own: usize, free: usize) -> bool {
    free > 0 && own < STATION_COMMANDS_MAX && (own < STATION_COMMANDS_FLOOR || own < free)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_station_leaves_room_for_commands_of_others() {
        let mut taken = [0; 24];
        let free = |taken: &[usize]| COMMANDS_MAX - taken.iter().sum::<usize>();
        for at in (0..taken.len()).cycle().take(taken.len() * STATION_COMMANDS_MAX) {
            taken[at] += usize::from(may_take(taken[at], free(&taken)));
        }
        assert!(may_take(0, free(&taken)) && free(&taken) > STATION_COMMANDS_FLOOR, "{taken:?}");
        assert!(may_take(STATION_COMMANDS_MAX - 1, COMMANDS_MAX) && !may_take(STATION_COMMANDS_MAX, COMMANDS_MAX));
        assert!(may_take(STATION_COMMANDS_FLOOR - 1, 1) && !may_take(STATION_COMMANDS_FLOOR, 1) && !may_take(0, 0));
    }
}
