//! Moments in UTC: in the names of files, so that their order by name is that by time, and for people.

/// `20261121T083647Z`, of nanoseconds since 1970, in UTC.
pub fn stamp(unix_ns: u64) -> String {
    let seconds = unix_ns / 1_000_000_000;
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    format!("{year:04}{month:02}{day:02}T{:02}{:02}{:02}Z", of_day / 3600, of_day / 60 % 60, of_day % 60)
}

/// `2026-11-21T08:36:47.123Z` (RFC 3339), of nanoseconds since 1970, in UTC. The time of day begins at its 12th character.
pub fn moment(unix_ns: u64) -> String {
    let (seconds, ms) = (unix_ns / 1_000_000_000, unix_ns / 1_000_000 % 1000);
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{ms:03}Z", of_day / 3600, of_day / 60 % 60, of_day % 60)
}

/// Year, month and day of a day since 1970. Years are counted from March here, so that the leap day is the last of its
/// year, and in eras of 400 years, which are all alike.
fn date(days: u64) -> (u64, u64, u64) {
    const ERA: u64 = 146_097;
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / ERA, shifted % ERA);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / (ERA - 1)) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_the_calendar() {
        let cases = [
            (0, "19700101T000000Z"),
            (951_782_399, "20000228T235959Z"),
            (951_782_400, "20000229T000000Z"),
            (1_709_251_199, "20240229T235959Z"),
            (1_709_251_200, "20240301T000000Z"),
            (1_735_689_599, "20241231T235959Z"),
            (4_107_542_400, "21000301T000000Z"),
        ];
        for (seconds, text) in cases {
            assert_eq!(stamp(seconds * 1_000_000_000), text);
        }
        assert_eq!(moment(951_782_399_007_999_999), "2000-02-28T23:59:59.007Z");
    }
}
