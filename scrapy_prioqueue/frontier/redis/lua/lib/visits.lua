-- Functions for scripts of programs that aren't workers.

-- Nothing is stored in a crawl that is over and is being, or has been, cleared.
function lib.takes_requests(phase, cleaner)
  return phase == "open" or (phase == "ended" and not cleaner)
end

-- Write the changes, and wake workers that wait for requests if there are new ones.
function lib.finish_changes(phase, crawl_id, added)
  lib.write_changes()
  if added == 0 then return end
  if phase == "ended" then lib.reopen(crawl_id) end
  lib.wake_hungry()
end
