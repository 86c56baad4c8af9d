-- What scripts of programs that are no workers share.

-- Nothing is stored in a crawl that is over and that someone clears, or has cleared.
function lib.takes_requests(phase, cleaner)
  return phase == "open" or (phase == "ended" and not cleaner)
end

-- Write what has changed, and wake the workers that wait for requests if there are some now.
function lib.finish_changes(phase, crawl_id, added)
  lib.write_changes()
  if added == 0 then return end
  if phase == "ended" then lib.reopen(crawl_id) end
  lib.wake_hungry()
end
